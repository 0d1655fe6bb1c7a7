"""Writes docs/models.md: the families of models that load, and how closely each is followed.

Run `python scripts/models_page.py` from the repository's root (`make docs` does). For each case of tests/models/families the
logits of dragoman are compared with those recorded from transformers, with f32, int8 and int4 weights; for each case of
tests/models/vision the embeddings of its pictures. Speed is measured by
`python -m benchmarks.shapes`, starts by `python -m benchmarks.starts`, on an otherwise idle machine; the last JSON line of
these, in files that `--speed` and `--starts` name, goes into the page, else what the page says already stays. What types of
GGUF files lose is recorded by `scripts/record_gguf_divergence.py`.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "src")]
from dragoman.gguf.architectures import ARCHITECTURES, VARIANTS  # noqa: E402
from dragoman.gguf.header import TYPES  # noqa: E402
from dragoman.gguf.pre_tokenizers import KINDS  # noqa: E402
from dragoman.models import ModelOptions, load_model  # noqa: E402
from dragoman.models.architectures import FAMILIES, TOWERS  # noqa: E402
from dragoman.models.families import find_family, read_model  # noqa: E402
from dragoman.models.families.base import Family  # noqa: E402
from dragoman.models.families.vision import INTERNVL_DECODERS  # noqa: E402
from dragoman.models.storage.constants import WeightType  # noqa: E402
from dragoman.server.generation.output_parsers import choose_output_format  # noqa: E402
from dragoman.tokenizer.chat_template import ChatTemplate  # noqa: E402
from tests.support.family_checkpoint import case_names, read_case, write_case  # noqa: E402
from tests.support.family_logits import PROMPTS, error_on_prompt  # noqa: E402
from tests.support.gguf_divergence import recorded_divergences  # noqa: E402
from tests.support.packed_layouts import LAYOUTS, LLAMA, difference, prompt_logits  # noqa: E402
from tests.support.packers import write_pair  # noqa: E402
from tests.support.pooling_checkpoint import case_names as pooling_case_names  # noqa: E402
from tests.support.pooling_checkpoint import read_case as read_pooling_case  # noqa: E402
from tests.support.pooling_vectors import error as pooling_error  # noqa: E402
from tests.support.random_checkpoint import write_checkpoint  # noqa: E402
from tests.support.vision_checkpoint import read_vision_case, vision_case_names  # noqa: E402
from tests.support.vision_model import SeeingModel  # noqa: E402

PAGE = ROOT / "docs" / "models.md"
POOLING = """\
Models that embed texts or score pairs load from directories as sentence-transformers writes them: `modules.json`,
`1_Pooling` (cls, mean, max, mean_sqrt_len_tokens, weightedmean, lasttoken, several together, with or without the
prompt), `2_Normalize`, Dense modules, the maximum length, and prompts. These families are supported:

- BERT (MiniLM, bge, e5, gte, arctic), RoBERTa, XLM-RoBERTa (bge-m3, multilingual-e5, bge-reranker), CamemBERT,
  DistilBERT, MPNet and ModernBERT (gte-modernbert). Each loads as `...Model`, `...ForMaskedLM` or, except MPNet,
  `...ForSequenceClassification`, which scores with one label and classifies with several.
- Nomic Embed 1 and 1.5, GTE 1.5 and mGTE (with `rope_scaling` ntk, and as rerankers), as released and as transformers
  writes them.
- Jina Embeddings 3, as released with an adapter for each task, or as transformers writes it without adapters.
- EuroBERT and EmbeddingGemma.
- The decoders above with plain attention: Qwen3-Embedding and Qwen3-Reranker (by the logits of yes and no, or
  converted).

Without `modules.json` an encoder embeds with the mean, or with the first token's vector if its name contains bge, gte,
arctic or mxbai. `--task`, `--pooling` and `--normalize` override this.

`...ForMaskedLM` weighs words as SPLADE does if `modules.json` has SpladePooling, or with `--pooling splade` (not for
Nomic, Jina and EuroBERT). ColBERT makes a vector of each token. It is recognised by PyLate's files (a Dense module
without Pooling) or by ColBERT's own (`HF_ColBERT`, `artifact.metadata`).

The table gives the relative distance from sentence-transformers' vectors, or from its scores before the activation.
The models are narrow and random, and lose more by rounding than trained ones.
"""
TEMPLATE_FOLDER = ROOT / "tests" / "tokenizer" / "chat_templates"
WEIGHT_TYPES: tuple[WeightType, ...] = ("f32", "int8", "int4")

# The recorded chat templates that models of a family come with, by the family's name (tests/tokenizer/chat_templates).
TEMPLATES: dict[str, tuple[str, ...]] = {
    "Cohere2": ("command_r7b",),
    "ExaoneExperts": ("exaone4",),
    "GlmLite": ("glm45",),
    "HunyuanExperts": ("hunyuan",),
    "Ministral3": ("mistral_v11",),
    "Mistral4": ("mistral_v11",),
    "DeepseekV3": ("deepseek_v3", "deepseek_v31", "kimi_k2"),
    "Ernie45": ("ernie45",),
    "ErnieExperts": ("ernie45",),
    "Exaone4": ("exaone4",),
    "Gemma": ("gemma2",),
    "Gemma2": ("gemma2",),
    "Gemma3": ("gemma3",),
    "Gemma3n": ("gemma3",),
    "Gemma4": ("gemma4",),
    "Glm": ("glm4",),
    "Glm4": ("glm4",),
    "GlmExperts": ("glm45",),
    "GptOss": ("gpt_oss",),
    "Granite": ("granite",),
    "GraniteHybrid": ("granite",),
    "GraniteExperts": ("granite",),
    "GraniteSharedExperts": ("granite",),
    "HunyuanDense": ("hunyuan",),
    "Lfm2": ("lfm2",),
    "Lfm2Experts": ("lfm2",),
    "Llama": ("llama3",),
    "Mistral": ("mistral", "mistral_v11"),
    "Mixtral": ("mistral",),
    "Olmo2": ("olmo3",),
    "Olmo3": ("olmo3",),
    "Phi3": ("phi3", "phi4_mini"),
    "Qwen2": ("qwen3",),
    "Qwen2Experts": ("qwen3",),
    "Qwen3": ("qwen3", "qwen3_coder"),
    "Qwen35": ("qwen3_coder",),
    "Qwen35Experts": ("qwen3_coder",),
    "Qwen3Experts": ("qwen3", "qwen3_coder"),
    "Qwen3Next": ("qwen3",),
    "SeedOss": ("seed_oss",),
    "SmolLM3": ("smollm3",),
}

INTRODUCTION = """# Models

The server loads directories in the format of the Hugging Face hub: `config.json`, `tokenizer.json`, `*.safetensors`.
It also loads [exported OpenVINO graphs](openvino.md). `scripts/models_page.py` writes this page.

- **f32, int8, int4**: the largest relative error of the logits against transformers in f32, over all recorded cases and
  prompts of 5, 90 and 700 tokens. The checkpoints are tiny and random, and lose more by compression than trained ones.
  int8 and int4 therefore compare families; they do not predict a real model's loss. [Compression](compression.md) gives
  that of the demo model, and `dragoman eval` that of yours.
- **Chat**: recorded templates of the family's models (tests/tokenizer/chat_templates), which render as in transformers.
  Models bring their own templates. **Tools, reasoning**: the formats that the server then chooses
  ([chat](dialects/chat.md)).
- **Speed**: bytes of weights read per second in int8 steps of 1 and of 32 sequences, relative to a Llama of that
  size (`python -m benchmarks.shapes`). Llama's own row shows the error of measurement: the model loaded
  second is slightly faster.

The loader reads every key of config.json and every tensor, or knows that it has no effect. Otherwise it refuses the
model and names the key or tensor.

"""

PICTURES = """\
Pictures are prepared as by transformers' processors on Pillow and numpy; a tower's input differs by less than
1e-6. **f32, int8, int4**: the largest relative error of the embeddings against transformers in f32, over all recorded
pictures. The towers are tiny and random, as above.

The rule above also holds for vision_config, preprocessor_config.json and the tower's tensors: a model with an unknown
key or tensor is refused when it loads.

`InternVLChatModel` is OpenGVLab's own layout of InternVL 2, 2.5 and 3, with these decoders: {decoders}.
Its cases use the numbers recorded for the other layout. [Pictures](pictures.md) covers `<IMG_CONTEXT>` and tiles.
LFM2-VL's processor needs torchvision, which rounds some values differently by one of 255; the server uses Pillow.
"""

QUANTISED = """\
Integer matrices of a quantised checkpoint go into the graph unchanged, with their own groups, scales and zero
points. `--dtype` sets the type of the other matrices (embeddings, head, matrices that the quantiser skipped). With
`--dtype f32` all matrices are converted to f32. fp8 has no kernels on CPUs, so its values are stored in the type of
`--dtype`. Activations are rounded by this server's kernels, in groups no larger than the smallest of the weights; a
checkpoint's settings for activations have no effect. Groups of fewer than 32 columns, and 4 bits in groups of whole
rows, work but were not measured.

- **f32, int8, bf16**: the relative error of the logits of a tiny random Llama. The reference is the checkpoint's
  dequantised values, computed in f32.
- **numbers in int8**: those values stored with `--dtype int8`, for comparison.

| layout | f32 | int8 | bf16 | numbers in int8 |
|---|---|---|---|---|"""

QUANTISED_END = """
Supported layouts:

- AWQ (AutoAWQ's gemm), GPTQ (`gptq`, `gptq_v2`; 4 and 8 bits, act-order, `quantize_config.json`), and AutoRound in
  either of these.
- compressed-tensors: `pack-quantized` with 4 and 8 bits, `int-quantized`, `float-quantized`, `naive-quantized`.
- fp8 with one scale, or one for each row or block (`fp8`, `fbgemm_fp8`).
- gpt-oss's MXFP4.

MXFP4, in safetensors or GGUF, keeps its 4 bits and groups of 32 by default; dragoman's kernels read them. OpenVINO's
kernels get lossless 8-bit integers: twice the values, with half the scale. Scales below 2^-24 become 0; scales above
2^15 are refused. bf16 and f32 keep every value. `--dtype int8` stores one scale per row. A product is then up to a
quarter faster, because the whole graph rounds activations in groups of 128 instead of 32. Its error is 1.2 % instead of
0.6 ([measured](performance-log.md)), on top of the 12 % that MXFP4 itself has lost.

The server refuses bitsandbytes, HQQ, AQLM, QuIP, EXL2, Quark, ModelOpt and 4-bit floats by name. Use the original
checkpoint, or a supported layout. It also refuses 2 and 3 bits, AWQ's other versions, sparsity, transforms, and tensors of
several matrices. The same holds for packed matrices stored by columns (GPT-2) and unknown keys of `quantization_config`.

Checkpoints load as stored on the hub and as saved by transformers 5 and 4.57. Without `architectures` in config.json,
`model_type` selects the architecture as in transformers. With **dynamic NTK scaling** the context is `factor` times the
original one. A sequence within the original context is computed as in transformers. A longer one uses the frequencies
of the longest context from its first token, as in vLLM."""
GGUF = """\
Name the file (`dragoman serve ./model-Q4_0.gguf`), its directory, or any part of a split file. If a directory has
several models, the error lists them. No other file is needed: the metadata holds the configuration, the tokenizer, the
chat template and the tokens that end a text. The metadata names one such token; special tokens with known names, such
as `<|endoftext|>` beside `<|im_end|>`, also end a text. Layers that guess further tokens are ignored.

The **vision part** is a separate file, llama.cpp's mmproj. The server loads it if exactly one file in the model's
directory has `mmproj` in its name and fits the model ([pictures](pictures.md#gguf-models)). If it does not fit, the log
says why, and the model accepts only texts.

- **Types**: {types}; files with others are refused by name.
- **Precision**: without `--dtype`, dragoman's kernels compute with the file's own values in their own size, also for
  F16 and BF16. F32 is compressed as in other checkpoints. `--dtype f32` computes with the file's values in f32. With
  any other `--dtype`, and with OpenVINO's kernels, Q8_0 and Q4_0 stay unchanged and all other types are converted; a
  line at start says so. int8 loses half a step of 255 in a row's range. int4 in groups of 128 loses about as much again
  as Q4_K lost.
- **Accuracy**: for every architecture below, logits with `--dtype f32` match the Hugging Face checkpoint's within a
  relative 1e-4, on files as llama.cpp's converter writes them. A model with an unknown metadata key or tensor is
  refused, and the error names it.
- **Missing in the format**: the converter drops the window of Mistral 7B v0.1 and Qwen 2, Falcon 2's rotary base, and
  the list of SmolLM3's layers without rotary positions. The server assumes what llama.cpp assumes. AFMoE's embeddings
  are scaled, and every fourth of its layers attends to everything. gpt-oss's positions are scaled without rounding, as
  its checkpoints say; llama.cpp rounds. For GLM-4 in the layout of transformers the converter drops base, epsilon and
  context; files made from the layout with code have them.
- **Further uses**: `granite` is also Granite 4 without recurrent layers, and `mistral3` the text part of
  Mistral Small 3.1.
- **Tokenizers**: byte-level BPE (gpt2) with these kinds in `tokenizer.ggml.pre`: {kinds}; SentencePiece pairs with
  scores (llama) or as a list (gemma4), and unigrams (t5). Other kinds are refused by name.
"""
GGUF_LOSS = """\
The table shows the KL divergence in nats per token of the demo model, over 1,024 tokens of matching text. **file**:
the type's own loss against the model's weights, in f32. **int8**, **int4**: the further loss with that `--dtype`,
against the file's values in f32. The types were made by rounding to nearest; llama.cpp searches for scales, and loses
less.

| type | file | int8 | int4 |
|---|---|---|---|"""
GGUF_RELEASED = """
The next table shows released files (`make test-models`), in thousandths of a nat per token over 20 texts. It compares
the default, the types of `--dtype` and llama.cpp (build 11549, AVX2) with exact arithmetic on the file's values, which
is transformers in f32. It counts the 64 likeliest tokens, and all others as one.

By default dragoman's kernels keep the file's types, as llama.cpp does. Both round activations to 8 bits, in groups of
32 columns (llama.cpp for K types of 256). One channel may be many times as large as the others, so that its group has
most of a row's error. dragoman rounds such a group to 16 bits. llama.cpp's numbers vary by a tenth with its batch size.
Measured on two cores of an AMD EPYC with AVX-512 and bf16:

| file | f32 | bf16 | f16 | default | int4 | llama.cpp |
|---|---|---|---|---|---|---|
| SmolLM2 135M Instruct, Q4_1 | 0 | 2.3 | 2.8 | 2.1 | 235 | 3.8 |
| Gemma 3 270M, Q4_K_M | 0 | 1.8 | 1.7 | 1.4 | 383 | 6.5 |
| Qwen 2.5 Coder 0.5B Instruct, Q4_K_M | 0 | 0.8 | 0.8 | 0.7 | 86 | 1.2 |

SmolLM2's values lost 5.4 as `int8` in groups of 128 columns, and 8.6 with a scale for each output. As Q8_0 they lose
6.2 with llama.cpp and 6.0 here. Gemma's values lost 4.1 as `int8` in groups.
"""
CACHE_TYPES = """
## Types of the cache

The table shows the loss by the cache's type on the files of `make test-models`, with weights in the files' types and
arithmetic in f32. It is the KL divergence from exact distributions, in thousandths of a nat. llama.cpp was built for
the same processor.

| cache | SmolLM2 135M | Gemma 3 270M | Qwen 2.5 0.5B |
|---|---|---|---|
| f32 | 1.9 | 1.5 | 0.4 |
| u8, dragoman's kernels | 2.0 | 2.5 | 0.7 |
| u8, keys as they are, in the range of each | 2.2 | 4.2 | 258 |
| keys of u8 and values of four bits, not offered | 10 | 9.0 | 3.4 |
| four bits, not offered | 27 | 41 | above 125 |
| llama.cpp, f16 | 3.8 | 6.5 | 1.2 |
| llama.cpp, q4_0 | 46 | - | 1,604 |

Some models, Qwen 2.5 most of all, add large numbers to all keys. Eight bits for a key's whole range then lose the small
values. dragoman's kernels therefore spread keys over the head (Hadamard's matrix), and store differences from the first
key of each block of 32 tokens. OpenVINO's kernels do not: with `--kernels openvino`, use `--kv-dtype bf16` or `f16` for
such models.

Four bits were measured in groups of 32, spread in the same way, with the best range for each group."""


@dataclass
class Row:
    """What is known of one family."""

    family: type[Family]
    cases: list[str] = field(default_factory=list)
    errors: dict[WeightType, float] = field(default_factory=dict)


def measured_rows() -> list[Row]:
    """Every family, with its cases compared."""
    rows: dict[type[Family], Row] = {}
    for architecture in FAMILIES:
        family = find_family(architecture)
        if isinstance(family, type):
            rows.setdefault(family, Row(family))
    for name in case_names():
        classes = type(read_model(read_case(name)["config"])).__mro__  # of a model that sees not listed itself
        next(rows[known] for known in classes if known in rows).cases.append(name)
    for family, row in rows.items():
        for weight_type in WEIGHT_TYPES:
            row.errors[weight_type] = max(error_of(name, weight_type) for name in row.cases)
        sys.stderr.write(f"{family.__name__}: {row.errors}\n")
    return list(rows.values())


def error_of(name: str, weight_type: WeightType) -> float:
    """The largest relative error of a case's prompts."""
    with tempfile.TemporaryDirectory() as directory:
        path = write_case(name, read_case(name), Path(directory))
        loaded = load_model(path, ModelOptions(weight_type=weight_type))
        return max(error_on_prompt(loaded, name, num_tokens) for num_tokens in PROMPTS)


def speeds(report: Path | None) -> dict[str, str]:
    """By architecture: the cells of the page's column, from a report of the benchmark or from the page."""
    if report is None:
        page = PAGE.read_text(encoding="utf-8") if PAGE.exists() else ""
        found = re.findall(r"^\| `(\w+)`.*\| ([^|]*?) \|$", page, re.MULTILINE)
        return dict(reversed(found))  # tables behind the first one name some again
    measured = json.loads(report.read_text(encoding="utf-8").strip().splitlines()[-1])
    return {row["architecture"]: f"{row['to_llama']:.2f}, {row['to_llama_32']:.2f}" for row in measured.values()}


class NoTokens:
    """A tokenizer in which marks are ordinary text."""

    def token_to_id(self, _token: str) -> None:
        """None."""

    def is_special(self, _token_id: int) -> bool:
        """False."""
        return False


def formats(template: str) -> str:
    """The forms of tool calls and reasoning that are chosen for a template."""
    source = (TEMPLATE_FOLDER / f"{template}.jinja").read_text(encoding="utf-8")
    return ", ".join(name or "none" for name in choose_output_format(ChatTemplate(source), NoTokens()).names)


def lines(rows: list[Row], speed: dict[str, str]) -> Iterator[str]:
    """The table."""
    yield "| architectures | what | f32 | int8 | int4 | chat | tools, reasoning | speed |"
    yield "|---|---|---|---|---|---|---|---|"
    for row in sorted(rows, key=lambda row: row.family.__name__.lower()):
        names = ", ".join(f"`{name}`" for name in row.family.architectures())
        what = " ".join((row.family.__doc__ or "").split("\n\n")[0].split()).rstrip(".")
        found = " | ".join(f"{row.errors[weight_type]:.1g}" for weight_type in WEIGHT_TYPES)
        templates = TEMPLATES.get(row.family.__name__, ())
        chat = ", ".join(templates)
        tools = "; ".join(dict.fromkeys(formats(template) for template in templates))
        yield f"| {names} | {what} | {found} | {chat} | {tools} | {speed.get(row.family.architectures()[0], '')} |"
    seeing = [name for name in FAMILIES if not isinstance(find_family(name), type) and name not in TOWERS]
    yield (
        "\nOf these checkpoints with vision, the server runs only the text model: "
        + ", ".join(f"`{x}`" for x in seeing)
        + ".\n"
    )


def picture_lines() -> Iterator[str]:
    """What of pictures is followed, and how closely."""
    yield "\n## Pictures\n"
    yield PICTURES.format(decoders=", ".join(f"`{name}`" for name in INTERNVL_DECODERS))
    yield "| architectures | f32 | int8 | int4 |"
    yield "|---|---|---|---|"
    cases: dict[str, list[str]] = {}
    for name in vision_case_names():
        cases.setdefault(read_vision_case(name)["config"]["architectures"][0], []).append(name)
    for architecture, names in sorted(cases.items()):
        found = [max(picture_error(name, weight_type) for name in names) for weight_type in WEIGHT_TYPES]
        sys.stderr.write(f"{architecture}: {found}\n")
        yield f"| `{architecture}` | " + " | ".join(f"{error:.1g}" for error in found) + " |"


def pooling_lines() -> Iterator[str]:
    """The models that embed and score, and how closely."""
    yield "\n## Embedding and reranking\n"
    yield POOLING
    yield "| architectures | f32 | int8 | int4 |"
    yield "|---|---|---|---|"
    cases: dict[str, list[str]] = {}
    for name in pooling_case_names():
        cases.setdefault(read_pooling_case(name)["config"]["architectures"][0], []).append(name)
    for architecture, names in sorted(cases.items()):
        found = [max(pooling_error(name, weight_type) for name in names) for weight_type in WEIGHT_TYPES]
        sys.stderr.write(f"{architecture}: {found}\n")
        yield f"| `{architecture}` | " + " | ".join(f"{error:.1g}" for error in found) + " |"


def gguf_lines() -> Iterator[str]:
    """What of GGUF files is read."""
    yield "\n## GGUF\n"
    yield GGUF.format(
        types=", ".join(name for name, _, _ in TYPES.values()), kinds=", ".join(f"`{kind}`" for kind in KINDS)
    )
    yield GGUF_LOSS
    for name, lost in recorded_divergences().items():
        yield f"| {name} | " + " | ".join(f"{lost[key]:.2g}" for key in ("file", "int8", "int4")) + " |"
    yield GGUF_RELEASED
    yield "| general.architecture | read as |"
    yield "|---|---|"
    for name, architecture in ARCHITECTURES.items():
        variants = [variant.hugging_face for (base, _), variant in VARIANTS.items() if base == name]
        if name == "deepseek2":
            variants.append("DeepseekV3ForCausalLM")
        read = dict.fromkeys((architecture.hugging_face, *variants))
        yield f"| `{name}` | {', '.join(f'`{one}`' for one in read)} |"


def picture_error(name: str, weight_type: WeightType) -> float:
    """The largest relative error of a case's embeddings."""
    with tempfile.TemporaryDirectory() as directory:
        model = SeeingModel(name, Path(directory), ModelOptions(weight_type=weight_type))
        return max(model.embedding_error(picture) for picture in model.case["pictures"])


def quantised_lines() -> Iterator[str]:
    """Which layouts of quantised checkpoints are followed, and how closely."""
    yield "\n## Quantised checkpoints\n"
    yield QUANTISED
    for layout, (packer, described) in LAYOUTS.items():
        with tempfile.TemporaryDirectory() as directory:
            pair = write_pair(write_checkpoint(LLAMA, Path(directory) / "source"), Path(directory), packer, described)
            expected = prompt_logits(pair.plain, "f32")
            stored: list[tuple[Path, WeightType]] = [
                (pair.packed, "f32"),
                (pair.packed, "int8"),
                (pair.packed, "bf16"),
                (pair.plain, "int8"),
            ]
            found = [difference(prompt_logits(path, weight_type), expected) for path, weight_type in stored]
        yield f"| {layout} | " + " | ".join(f"{error:.2g}" for error in found) + " |"
    yield QUANTISED_END


STARTS_HEADING = "\n## Starts\n"
STARTS = """\
Llama of {millions} million parameters on {cores} cores {processor}, with files not in the page cache
(`python -m benchmarks.starts`). A **cold** start packs the weights and keeps them; a **kept** start maps those of an
earlier start. Memory is the process's own, without mapped files. GGUF files keep nothing; exported graphs keep their
weights.

| weights | on disk, MiB | cold, s | peak, MiB | afterwards, MiB | kept, s | kept, MiB |
|---|---|---|---|---|---|---|"""


def start_lines(report: Path | None) -> Iterator[str]:
    """What starts take, from a report of the benchmark or from the page."""
    yield STARTS_HEADING
    if report is None:
        yield PAGE.read_text(encoding="utf-8").partition(STARTS_HEADING)[2].strip("\n")
        return
    found = json.loads(report.read_text(encoding="utf-8").strip().splitlines()[-1])
    warm = [row["format"] for row in found["rows"] if not row["is_cold"]]
    if warm:
        raise SystemExit(f"--starts={report}: must be measured with files out of the page cache, was not for {warm}")
    kinds = {(True, True): "with AVX-512 and bf16", (False, True): "with VNNI", (False, False): "with AVX2"}
    yield STARTS.format(
        millions=round(found["parameters"] / 1e6),
        cores=found["cores"],
        processor=kinds[found["has_bf16"], found["has_integer_dot_products"]],
    )
    formats = [row["format"] for row in found["rows"]]
    chosen = {name for name in formats if formats.count(name) > 1}  # of which every type was measured
    for row in found["rows"]:
        name = f"{row['format']}, `--dtype {row['dtype']}`" if row["format"] in chosen else row["format"]
        sizes = [f"{row[key]:,.0f}" for key in ("on_disk_mib", "peak_mib", "afterwards_mib", "kept_graph_mib")]
        disk, peak, afterwards, graph = sizes
        yield f"| {name} | {disk} | {row['cold_s']:.1f} | {peak} | {afterwards} | {row['kept_s']:.1f} | {graph} |"


def main() -> None:
    """Write the page."""
    parser = argparse.ArgumentParser(description="Write docs/models.md.")
    parser.add_argument("--speed", type=Path, help="the output of python -m benchmarks.shapes")
    parser.add_argument("--starts", type=Path, help="the output of python -m benchmarks.starts")
    asked = parser.parse_args()
    page = [
        *lines(measured_rows(), speeds(asked.speed)),
        *picture_lines(),
        *pooling_lines(),
        *quantised_lines(),
        *gguf_lines(),
        CACHE_TYPES,
        *start_lines(asked.starts),
    ]
    PAGE.write_text(INTRODUCTION + "\n".join(page) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
