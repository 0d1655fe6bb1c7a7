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
from dragoman.models.families import FAMILIES, find_family, read_model  # noqa: E402
from dragoman.models.families.base import Family  # noqa: E402
from dragoman.models.families.vision import INTERNVL_DECODERS, TOWERS  # noqa: E402
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
POOLING = """Models that embed texts or score pairs of them are served by their directories as sentence-transformers
writes them: `modules.json`, `1_Pooling` (cls, mean, max, mean_sqrt_len_tokens, weightedmean, lasttoken, several side by
side, with and without the prompt), `2_Normalize`, Dense modules, the longest text, prompts. So are BERT (MiniLM, bge,
e5, gte, arctic), RoBERTa, XLM-RoBERTa (bge-m3, multilingual-e5, bge-reranker), CamemBERT, DistilBERT, MPNet and
ModernBERT (gte-modernbert). Each is read as `...Model`, `...ForMaskedLM` or, except MPNet,
`...ForSequenceClassification`, which scores with one label and classifies with several. Nomic Embed 1 and 1.5, GTE 1.5
and mGTE (with `rope_scaling` ntk, and as rerankers) are read as released and as transformers writes them. Jina
Embeddings 3 is read as released, with an adapter for each task, and as transformers writes it, without. EuroBERT and
EmbeddingGemma are read, too. So are decoders of the families above that attend plainly: Qwen3-Embedding, Qwen3-Reranker
(by the logits of yes and no, or converted). Without `modules.json` an encoder embeds, with the mean or, where its name
has bge, gte, arctic or mxbai in it, the first token's vector; `--task`, `--pooling` and `--normalize` say otherwise.
`...ForMaskedLM` of encoders but Nomic's, Jina's and EuroBERT weighs words, as SPLADE does, where `modules.json` has
SpladePooling or with `--pooling splade`. ColBERT makes a vector of each token, as PyLate's files (a Dense module
without Pooling) or ColBERT's own (`HF_ColBERT`, `artifact.metadata`) say. The table has the distance from
sentence-transformers' vectors, or scores before the activation, as a part of their length. The models are narrow and
have random weights, which lose more by rounding than trained ones.
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

A directory as the Hugging Face hub has it is served as it lies there: `config.json`, `tokenizer.json`, `*.safetensors`. This
page is written by `scripts/models_page.py`. Exported OpenVINO graphs: [openvino.md](openvino.md).

- **f32, int8, int4**: how far logits are from those of transformers in f32, relative, at most over all recorded cases and
  prompts of 5, 90 and 700 tokens. The checkpoints are tiny and random, which is harder on compression than trained ones:
  int8 and int4 say where a family stands among others, not what a real model loses; [compression](compression.md) tells
  that of the demo model, and `dragoman eval` of yours.
- **Chat**: recorded templates (tests/tokenizer/chat_templates) of the kind that models of the family have, which render as
  transformers renders them; models bring templates of their own. **Tools, reasoning**: the forms that are then chosen by
  themselves ([chat](dialects/chat.md)).
- **Speed**: bytes of weights read per second in bare int8 steps of one and of 32 sequences, relative to a Llama of the
  same numbers (layers, heads, sizes). It is given where a shape of the family was measured
  (`python -m benchmarks.shapes`). Llama beside itself shows what such a measurement leaves open: the model that
  is loaded second is a little faster.

Every key of config.json is read, known to change nothing, or named when the model is refused; so is every tensor.

"""

PICTURES = """Pictures are prepared as transformers' processors on Pillow and numpy prepare them: the numbers that a
tower gets differ by less than 1e-6. **f32, int8, int4**: how far the embeddings are from those of transformers in f32,
relative, at most over all recorded pictures; the towers are tiny and random, as above. What is not followed is refused when
the model is loaded: every key of vision_config and of preprocessor_config.json is read, known to change nothing, or named;
so is every tensor of the tower. `InternVLChatModel` is OpenGVLab's own layout of InternVL 2, 2.5 and 3, with decoders of
the architectures {decoders}; its cases are the recorded numbers of the other layout under the
names of this one. `<IMG_CONTEXT>` and the tiles: [pictures.md](pictures.md).
LFM2-VL's processor exists for torchvision alone, which rounds some values to the next of 255; here Pillow resizes its
pictures, too.
"""

QUANTISED = """Where a checkpoint is already quantised, its matrices of integers go into the graph as they are, with
their own groups, scales and zero points; `--dtype` is how the others are stored (embeddings' head, what the quantiser
left out). With `--dtype f32` all are the numbers that they stand for. Floats of 8 bits (fp8) have no kernels on
processors: their numbers are stored as `--dtype` says. Activations are rounded as kernels here do it, in groups no
larger than the smallest of the weights. What a checkpoint describes for other programs does not change that. In groups
of fewer than 32 columns, and 4 bits in groups of whole rows, kernels were not measured.

- **f32, int8, bf16**: how far logits are from those of the numbers that the checkpoint stands for, computed in f32,
  relative, of a tiny random Llama; **numbers in int8**: those numbers, stored as int8 by `--dtype int8`, to compare.

| layout | f32 | int8 | bf16 | numbers in int8 |
|---|---|---|---|---|"""

QUANTISED_END = """
These are read: AWQ (AutoAWQ's gemm), GPTQ (`gptq`, `gptq_v2`; 4 and 8 bits, act-order,
`quantize_config.json`), and AutoRound in either of these; compressed-tensors (`pack-quantized` of 4 and 8 bits,
`int-quantized`, `float-quantized`, `naive-quantized`); fp8 with one scale, or one for each row or block (`fp8`,
`fbgemm_fp8`); and gpt-oss's MXFP4. MXFP4, in safetensors as in GGUF files, stays in its groups of 32 where no type is
asked for: dragoman's own kernels read its four bits. For OpenVINO's, twice its values are integers of 8 bits, which
with half its scale lose nothing. Scales below 2^-24 become 0; those above 2^15 are refused. If `--dtype int8` is given,
the numbers are stored with a scale for each row. A product is then up to a quarter faster, as activations are rounded
in groups of 128 instead of 32 in the whole graph. Its error is 1.2 % instead of 0.6 ([measured](performance-log.md)),
on top of the 12 % that MXFP4 itself has lost. bf16 and f32 keep every value; so would the runtime's own 4-bit floats,
in half the memory of int8, but more than twice as slowly. bitsandbytes, HQQ, AQLM, QuIP, EXL2, Quark, ModelOpt and
4-bit floats are refused by name: use the checkpoint that is not quantised, or one of the above. So are 2 and 3 bits,
AWQ's other versions, sparsity, transforms, tensors of several matrices, and packed matrices stored by columns (GPT-2).
So is every key of `quantization_config` that is neither read nor known to change nothing.

Checkpoints load as the hub has them and as transformers 5 and 4.57 save them. A config.json without `architectures`
means the one that transformers pairs with its `model_type`. With **dynamic NTK scaling** the context is `factor`
times the original one. A sequence that fits the original context is computed as transformers does; a longer one, from
its first token on, with the frequencies of the longest context, as vLLM does."""
GGUF = """`dragoman serve ./model-Q4_0.gguf`, or the directory with the file, or with the parts of a split one (any of
them may be named). A directory with several models says which to name. Beside the file nothing is needed:
config.json, tokenizer.json, chat template and the tokens that end a text are made from its metadata. Special tokens that
are ends by their name end texts as well, such as `<|endoftext|>` beside `<|im_end|>`: files name one of them. Layers that
guess further tokens are not read.

**What sees** is a file of its own, llama.cpp's mmproj. Where one file beside the model has `mmproj` in its name and fits
the model, pictures are taken in: [pictures.md](pictures.md#gguf-models). Where it does not fit, the log names why, and texts
are taken in.

- **Types**: {types}; a file with others is refused by their name.
- **Exact**: without `--dtype`, dragoman's kernels compute with the file's own values in the file's own size, whatever
  the type, F16 and BF16 among them. F32 is compressed as in other checkpoints. With `--dtype`, and with OpenVINO's
  kernels, Q8_0 and Q4_0 stay as they are, and all others are stored again. As int8 they lose half a step of 255 in a
  row's range. As int4 in groups of 128 they lose again as much as a Q4_K file has lost. The start says so in a line.
  `--dtype f32` computes with the file's own values in f32.
- **Followed**: for every architecture below, logits with `--dtype f32` are those of the Hugging Face checkpoint,
  relative 1e-4, on files written as llama.cpp's converter writes them. A key of the metadata or a tensor that nobody
  looks up is named when the model is refused.
- **Not in the format**: the converter leaves out the window of Mistral 7B v0.1 and Qwen 2, Falcon 2's base of
  positions, and which layers of SmolLM3 do not turn. What llama.cpp takes in their place is taken here, too. AFMoE's
  embeddings are scaled, and every fourth of its layers sees everything. gpt-oss's positions are scaled without
  rounding, as its checkpoints say, where llama.cpp rounds. Of GLM-4 in the layout of transformers it leaves out base,
  epsilon and context; files made of the layout with code have them.
- **Also**: `granite` is Granite 4 without recurrent layers, too, and `mistral3` the text of Mistral Small 3.1.
- **Tokenizers**: byte-level BPE (gpt2) with these kinds in `tokenizer.ggml.pre`: {kinds}; SentencePiece's pairs with
  scores (llama) or a list of them (gemma4), and unigrams (t5). A kind that is not listed is refused by its name.
"""
GGUF_LOSS = """What is lost, in nats of KL divergence for each token that the demo model reads (1,024 of text of its kind):
**file**, by the type itself, in f32, from the model's own weights; **int8**, **int4**, by storing and computing with that
`--dtype`, from the file's values in f32. The types are made by rounding to nearest here; llama.cpp searches for scales, and
loses less.

| type | file | int8 | int4 |
|---|---|---|---|"""
GGUF_RELEASED = """
Of released files (`make test-models`), in thousandths of a nat for each token of 20 texts: what the default, the types
of `--dtype` and llama.cpp (build 11549, AVX2) lose against exact arithmetic on the file's values: transformers' in f32.
Counted are the 64 likeliest tokens, and all others as one. The default, on our kernels, keeps the file's types as
llama.cpp does; both round activations to 8 bits, in groups of 32 columns (llama.cpp for K types of 256). llama.cpp's
numbers move by a tenth with the tokens that it reads at once, ours moved by up to a third between two versions: a
single position may be a sixth of a sum. Measured on two cores of an AMD EPYC with AVX-512 and bf16, which what is not a
product is computed in:

| file | f32 | bf16 | f16 | default | int4 | llama.cpp |
|---|---|---|---|---|---|---|
| SmolLM2 135M Instruct, Q4_1 | 0 | 2.3 | 2.8 | 4.3, 5.1 (two versions); with f32 in place of bf16 3.9 | 236 | 3.8 |
| Gemma 3 270M, Q4_K_M | 0 | 1.8 | 1.7 | 3.9, 2.8 | 389 | 6.5 |
| Qwen 2.5 Coder 0.5B Instruct, Q4_K_M | 0 | 0.8 | 0.8 | 0.9 | 87 | 1.2 |

Of SmolLM2's values, stored again with 8 bits, `int8` in groups of 128 columns lost 5.4, and with a scale for each
output 8.6. As Q8_0 they lose 6.2 with llama.cpp and 6.0 here. Of Gemma's values `int8` in groups lost 4.1.
"""


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
        names = ", ".join(f"`{name}`" for name in row.family.architectures)
        what = " ".join((row.family.__doc__ or "").split("\n\n")[0].split()).rstrip(".")
        found = " | ".join(f"{row.errors[weight_type]:.1g}" for weight_type in WEIGHT_TYPES)
        templates = TEMPLATES.get(row.family.__name__, ())
        chat = ", ".join(templates)
        tools = "; ".join(dict.fromkeys(formats(template) for template in templates))
        yield f"| {names} | {what} | {found} | {chat} | {tools} | {speed.get(row.family.architectures[0], '')} |"
    seeing = [name for name in FAMILIES if not isinstance(find_family(name), type) and name not in TOWERS]
    yield (
        "\nOf other checkpoints that also see, the text model is served: " + ", ".join(f"`{x}`" for x in seeing) + ".\n"
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
STARTS = """Llama of {millions} million parameters on {cores} cores {processor}, files not in the page cache
(`python -m benchmarks.starts`): **cold** packs the weights and keeps them, **kept** maps those that an earlier start kept.
Memory is the process's own; what is kept is mapped besides. GGUF files keep nothing, and exported graphs their weights.

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
        *start_lines(asked.starts),
    ]
    PAGE.write_text(INTRODUCTION + "\n".join(page) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
