// Writes zod.json: the schemas that zod writes for every type, with values that it takes and refuses.
// Run by hand: npm install zod@4 in an empty folder, copy this file there, node record_zod.mjs, copy zod.json back.
import { readFileSync, writeFileSync } from "node:fs";
import { z } from "zod";

const UUID = "123e4567-e89b-42d3-a456-426614174000";
const Node = z.object({ value: z.number(), get next() { return z.union([Node, z.null()]); } });

const ROWS = {
  "string": [z.string(), ["a"], [1]],
  "string lengths": [z.string().min(2).max(3), ["ab"], ["a", "abcd"]],
  "string regex": [z.string().regex(/^[a-z]{2}$/), ["ab"], ["a1"]],
  "string startsWith": [z.string().startsWith("ab"), ["abc"], ["b"]],
  "string endsWith": [z.string().endsWith("c"), ["abc"], ["b"]],
  "string includes": [z.string().includes("a/b"), ["xa/by"], ["b"]],
  "lowercase": [z.lowercase ? z.string().lowercase() : z.string(), ["ab"], ["AB"]],
  "email": [z.email(), ["a@example.com"], ["a"]],
  "uuid": [z.uuid(), [UUID], ["a"]],
  "uuidv4": [z.uuidv4(), [UUID], ["a"]],
  "guid": [z.guid(), [UUID], ["a"]],
  "url": [z.url(), ["https://example.com/a"], ["a"]],
  "emoji": [z.emoji(), ["😀"], ["a"]],
  "nanoid": [z.nanoid(), ["V1StGXR8_Z5jdHi6B-myT"], ["a"]],
  "cuid": [z.cuid(), ["cjld2cjxh0000qzrmn831i7rn"], ["-"]],
  "cuid2": [z.cuid2(), ["tz4a98xxat96iws9zmbrgj3a"], ["-"]],
  "ulid": [z.ulid(), ["01ARZ3NDEKTSV4RRFFQ69G5FAV"], ["a"]],
  "xid": [z.xid(), ["9m4e2mr0ui3e8a215n4g"], ["a"]],
  "ksuid": [z.ksuid(), ["0ujtsYcgvSTl8PAuAdqWYSMnLOv"], ["a"]],
  "ipv4": [z.ipv4(), ["1.2.3.4"], ["a"]],
  "ipv6": [z.ipv6(), ["2001:db8::1"], ["xyz"]],
  "cidrv4": [z.cidrv4(), ["1.2.3.0/24"], ["a"]],
  "base64": [z.base64(), ["YQ=="], ["-"]],
  "base64url": [z.base64url(), ["YQ"], ["+"]],
  "e164": [z.e164(), ["+14155552671"], ["a"]],
  "jwt": [z.jwt(), [], []],
  "iso.date": [z.iso.date(), ["2026-01-02"], ["a"]],
  "iso.time": [z.iso.time(), ["03:04:05"], ["a"]],
  "iso.datetime": [z.iso.datetime(), ["2026-01-02T03:04:05Z"], ["a"]],
  "iso.duration": [z.iso.duration(), ["P1DT2H"], ["a"]],
  "template literal": [z.templateLiteral(["a-", z.number()]), ["a-5"], ["b"]],
  "number": [z.number(), [1.5, 2], ["a"]],
  "number bounds": [z.number().min(0).max(1), [0.5, 1], [1.5]],
  "positive": [z.number().positive(), [0.5], [-1]],
  "multipleOf": [z.number().multipleOf(5), [10], [11]],
  "int": [z.int(), [1, -5, 9007199254740991], [1.5, 9007199254740992]],
  "int32": [z.int32(), [1, -2147483648], [2147483648]],
  "uint32": [z.uint32(), [1, 4294967295], [-1]],
  "float32": [z.float32(), [1.5], ["a"]],
  "float64": [z.float64(), [1.5], ["a"]],
  "boolean": [z.boolean(), [true], ["a"]],
  "null": [z.null(), [null], [1]],
  "any": [z.any(), [1, "a", { a: 1 }], []],
  "unknown": [z.unknown(), [1, null], []],
  "literal": [z.literal(["a", 1]), ["a", 1], ["b"]],
  "enum": [z.enum(["a", "b"]), ["a"], ["c"]],
  "native enum": [z.enum({ LOW: 1, HIGH: 2 }), [1], [3]],
  "object": [z.object({ a: z.number(), b: z.string().optional() }), [{ a: 1 }, { a: 1, b: "x" }], [{ a: "x" }, { b: "x" }]],
  "strict object": [z.strictObject({ a: z.number() }), [{ a: 1 }], [{ a: 1, b: 2 }]],
  "loose object": [z.looseObject({ a: z.number() }), [{ a: 1, b: 2 }], [{ b: 2 }]],
  "catchall": [z.object({ a: z.number() }).catchall(z.string()), [{ a: 1, b: "x" }], [{ a: 1, b: 2 }]],
  "object with never": [z.object({ a: z.never().optional(), b: z.number() }), [{ b: 1 }], [{ a: 1, b: 1 }]],
  "recursive object": [Node, [{ value: 1, next: { value: 2, next: null } }], [{ value: 1, next: 2 }]],
  "array": [z.array(z.number()), [[], [1, 2]], [["a"]]],
  "array bounds": [z.array(z.number()).min(1).max(2), [[1]], [[], [1, 2, 3]]],
  "tuple": [z.tuple([z.number(), z.string()]), [[1, "a"]], [["a", 1]]],
  "tuple with rest": [z.tuple([z.number()], z.string()), [[1, "a", "b"]], [[1, 2]]],
  "record": [z.record(z.string(), z.number()), [{ a: 1 }], [{ a: "b" }]],
  "record of enum": [z.record(z.enum(["a", "b"]), z.number()), [{ a: 1, b: 2 }], [{ a: 1, b: 2, c: 3 }, { a: "x", b: 1 }]],
  "partial record": [z.partialRecord(z.enum(["a", "b"]), z.number()), [{ a: 1 }], [{ c: 1 }]],
  "record of regex": [z.record(z.string().regex(/^[a-z]+$/), z.number()), [{ ab: 1 }], [{ A: 1 }]],
  "record of lengths": [z.record(z.string().min(2), z.number()), [{ ab: 1 }], [{ a: 1 }]],
  "record of numbers": [z.record(z.number(), z.string()), [{ 1: "a" }], [{ 1: 2 }]],
  "union": [z.union([z.number(), z.string()]), [1, "a"], [null]],
  "discriminated union": [
    z.discriminatedUnion("kind", [
      z.object({ kind: z.literal("cat"), lives: z.number() }),
      z.object({ kind: z.literal("dog"), good: z.boolean() }),
    ]),
    [{ kind: "cat", lives: 9 }],
    [{ kind: "cow" }],
  ],
  "xor": [z.xor ? z.xor([z.number(), z.string()]) : z.number(), [1], [null]],
  "intersection": [
    z.intersection(z.object({ a: z.number() }), z.object({ b: z.string() })), [{ a: 1, b: "x" }], [{ a: 1 }],
  ],
  "optional": [z.object({ a: z.number().optional() }), [{}, { a: 1 }], [{ a: "x" }]],
  "nullable": [z.number().nullable(), [1, null], ["a"]],
  "nullish": [z.object({ a: z.number().nullish() }), [{}, { a: null }], [{ a: "x" }]],
  "default": [z.object({ a: z.number().default(5) }), [{ a: 1 }], [{ a: "x" }]],
  "readonly": [z.array(z.number()).readonly(), [[1]], [["a"]]],
  "brand": [z.string().brand("B"), ["a"], [1]],
  "described": [z.string().describe("d").meta({ examples: ["x"], deprecated: true }), ["a"], [1]],
  "lazy": [z.lazy(() => z.number()), [1], ["a"]],
  "json": [z.json(), [{ a: [1, "x", null] }], []],
  "stringbool": [z.stringbool(), ["yes"], [1], "input"],
  "preprocess, pipe": [z.pipe(z.string(), z.coerce.number()), ["5"], [], "input"],
  "promise": [z.promise(z.number()), [], []],
};

const rows = [];
for (const [name, [type, valid, invalid, io]] of Object.entries(ROWS)) {
  for (const value of valid) {
    if (!type.safeParse(value).success) throw new Error(`${name} does not take ${JSON.stringify(value)}`);
  }
  for (const value of invalid) {
    if (type.safeParse(value).success) throw new Error(`${name} takes ${JSON.stringify(value)}`);
  }
  rows.push({ name, schema: z.toJSONSchema(type, io ? { io } : {}), valid, invalid });
}
// As clients that know draft 7 only are sent them.
for (const name of ["record of enum", "tuple with rest", "recursive object"]) {
  const [type, valid, invalid] = ROWS[name];
  rows.push({ name: `${name}, draft 7`, schema: z.toJSONSchema(type, { target: "draft-7" }), valid, invalid });
}
const version = JSON.parse(readFileSync("node_modules/zod/package.json", "utf8")).version;
const text = rows.map((row) => JSON.stringify(row)).join(",\n");
writeFileSync("zod.json", `{"by": "zod ${version}", "rows": [\n${text}\n]}\n`);
