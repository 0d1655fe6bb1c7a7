"""Finding and loading model.py: which file, what it may import, what stops the start, what it leaves behind."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

from dragoman.server.apis.lmi.hooks.handler_io import Input
from dragoman.server.apis.lmi.hooks.loader import HookLoadError, Hooks, load_hooks
from tests.hooks.hooked import ECHO, hooked, loaded, prompt, text_of, write_file
from tests.support.tables import table

pytestmark = pytest.mark.varies("import hooks, dataclasses and postponed annotations differ between Pythons")


def has_functions_that_act(hooks: Hooks) -> bool:
    return (hooks.input_formatter, hooks.output_formatter, hooks.handler) != (None, None, None)


class TestWhichFile:
    def test_without_a_file_there_are_no_hooks(self, tmp_path: Path) -> None:
        assert load_hooks(None, [tmp_path]) is None

    def test_an_empty_file_changes_nothing(self, tmp_path: Path) -> None:
        assert not has_functions_that_act(loaded(tmp_path, ""))

    @table("entry_point", ["own.py", "own"])
    def test_a_file_is_named_with_or_without_its_ending(self, tmp_path: Path, entry_point: str) -> None:
        path = write_file(tmp_path, ECHO, "own.py")
        hooks = load_hooks(entry_point, [tmp_path])
        assert hooks is not None
        assert (hooks.path, has_functions_that_act(hooks)) == (path, True)

    def test_a_path_may_be_anywhere(self, tmp_path: Path) -> None:
        (tmp_path / "elsewhere").mkdir()
        path = write_file(tmp_path / "elsewhere", ECHO, "own.py")
        assert getattr(load_hooks(str(path), [tmp_path]), "path", None) == path

    def test_the_first_directory_goes_before_the_second(self, tmp_path: Path) -> None:
        first, second = tmp_path / "a", tmp_path / "b"
        for directory in (first, second):
            directory.mkdir()
            write_file(directory, ECHO)
        assert getattr(load_hooks(None, [first, second]), "path", None) == first / "model.py"

    def test_lmis_own_handlers_mean_the_default_file(self, tmp_path: Path) -> None:
        assert load_hooks("djl_python.huggingface", [tmp_path]) is None
        write_file(tmp_path, ECHO)
        assert load_hooks("djl_python.huggingface", [tmp_path]) is not None

    def test_of_two_decorated_functions_the_first_by_name_counts(self, tmp_path: Path) -> None:
        source = "@output_formatter\ndef zz(o: RequestOutput): ...\n@output_formatter\ndef aa(o: RequestOutput): ...\n"
        formatter = loaded(tmp_path, source).output_formatter
        assert formatter is not None
        assert formatter.function.__name__ == "aa"


class TestWhatStopsTheStart:
    @table(
        ("entry_point", "reason"),
        [("missing.py", "there is none of that name"), ("https://host/model.py", "code is not downloaded")],
    )
    def test_a_named_file_must_be_there(self, tmp_path: Path, entry_point: str, reason: str) -> None:
        with pytest.raises(HookLoadError, match=reason):
            load_hooks(entry_point, [tmp_path])

    @table(
        ("source", "reason"),
        [
            ("def broken(:\n", "SyntaxError"),
            ("import no_such_module\n", "No module named 'no_such_module'"),
            ("from djl_python.rolling_batch import X\n", "No module named 'djl_python.rolling_batch'"),
            ("raise RuntimeError('not today')\n", "RuntimeError: not today"),
            ("import sys\nsys.exit(3)\n", "SystemExit: 3"),
            ("def handle(): ...\n", r"handle\(\) must take one argument, the Input: too many positional arguments"),
            (
                "def handle(a, b): ...\n",
                r"handle\(\) must take one argument, the Input: missing a required argument: 'b'",
            ),
            ("@input_formatter\ndef f(*, tokenizer): ...\n", "input formatter f: f must take one argument at least"),
            ("@output_formatter\ndef f(a, b, c): ...\n", "output formatter f: f must take one argument"),
        ],
    )
    def test_a_file_that_cannot_act_is_refused_with_the_reason(self, tmp_path: Path, source: str, reason: str) -> None:
        with pytest.raises(HookLoadError, match=reason) as caught:
            loaded(tmp_path, source)
        assert str(tmp_path / "model.py") in str(caught.value)

    def test_the_traceback_begins_in_the_operators_file(self, tmp_path: Path) -> None:
        with pytest.raises(HookLoadError) as caught:
            loaded(tmp_path, "def deep():\n    return 1 / 0\ndeep()\n")
        lines = str(caught.value).splitlines()
        assert lines[1] == "Traceback (most recent call last):"
        assert lines[2].strip().startswith(f'File "{tmp_path / "model.py"}", line ')
        assert "return 1 / 0" in str(caught.value)
        assert "importlib" not in str(caught.value)

    def test_a_formatter_that_an_option_names_must_exist(self, tmp_path: Path) -> None:
        with pytest.raises(HookLoadError, match=r"there is no model\.py in"):
            load_hooks(None, [tmp_path], "mine")
        with pytest.raises(HookLoadError, match="has no function named mine"):
            loaded(tmp_path, ECHO, "mine")


class TestImports:
    def test_files_beside_it_can_be_imported_at_the_top_and_later(self, tmp_path: Path) -> None:
        (tmp_path / "words.py").write_text("from djl_python.request_io import Token\nOPEN = '<'\n")
        package = tmp_path / "more"
        package.mkdir()
        (package / "__init__.py").write_text("from .marks import CLOSE\n")
        (package / "marks.py").write_text("CLOSE = '>'\n")
        source = """
        import words

        @output_formatter
        def write(output: RequestOutput):
            import more.marks
            from djl_python.request_io import TextInput as Late
            assert isinstance(output.input, Late)
            return words.OPEN + output.sequences[0].get_next_token()[0].text + more.marks.CLOSE
        """
        assert text_of(hooked(tmp_path, source), prompt()) == "< Deep>< learning>< is>"

    def test_two_models_have_their_own_files_of_the_same_name(self, tmp_path: Path) -> None:
        dialects = []
        for name in ("one", "two"):
            directory = tmp_path / name
            directory.mkdir()
            (directory / "utils.py").write_text(f"NAME = {name!r}\n")
            source = (
                "@output_formatter\ndef f(o: RequestOutput):\n    import utils\n    o.sequences[0].get_next_token()\n"
            )
            dialects.append(hooked(directory, source + "    return utils.NAME + ' '\n"))
        assert [text_of(dialect, prompt()) for dialect in dialects] == ["one one one ", "two two two "]

    def test_others_see_djl_python_and_nothing_else(self, tmp_path: Path) -> None:
        (tmp_path / "beside.py").write_text("VALUE = 1\n")
        modules = set(sys.modules)
        dialect = hooked(tmp_path, "import beside\n" + ECHO)
        text_of(dialect, prompt())
        assert {"model", "beside"} & set(sys.modules) == {"model", "beside"} & modules
        assert importlib.util.find_spec("beside") is None
        assert importlib.util.find_spec("djl_python.inputs") is not None
        assert str(tmp_path) not in sys.path
        assert sys.modules["djl_python"].Input is Input

    def test_a_failed_load_leaves_nothing_behind(self, tmp_path: Path) -> None:
        (tmp_path / "beside.py").write_text("VALUE = 1\n")
        finders, modules = list(sys.meta_path), set(sys.modules)
        with pytest.raises(HookLoadError):
            loaded(tmp_path, "import beside\nimport nowhere\n")
        assert sys.meta_path == finders
        assert [name for name in set(sys.modules) - modules if "model" in name or "beside" in name] == []

    def test_no_compiled_files_are_written_beside_it(self, tmp_path: Path) -> None:
        (tmp_path / "beside.py").write_text("VALUE = 1\n")
        loaded(tmp_path, "import beside\n")
        assert not (tmp_path / "__pycache__").exists()

    @table(
        ("statement", "value"),
        [
            ("import words", "words.WORD"),
            ("import words as w", "w.WORD"),
            ("from words import WORD", "WORD"),
            ("from words import *", "WORD"),
            ("import json, words, more.deep", "words.WORD"),
            ("import more.deep", "more.deep.WORD"),
            ("import more.deep as d", "d.WORD"),
            ("import more", "more.TOP"),
            ("from more import deep", "deep.WORD"),
            ("from more.deep import WORD as w", "w"),
            ("import bare.inner", "bare.inner.WORD"),
            ("from . import words", "words.WORD"),
            ("import round_one", "round_one.WORD"),
        ],
    )
    def test_every_form_of_import_finds_neighbours(self, tmp_path: Path, statement: str, value: str) -> None:
        (tmp_path / "words.py").write_text("WORD = 'own'\n")
        (tmp_path / "round_one.py").write_text("import round_two\nWORD = 'own'\n")
        (tmp_path / "round_two.py").write_text("import round_one\n")
        for name in ("more", "bare"):
            (tmp_path / name).mkdir()
        (tmp_path / "more" / "__init__.py").write_text("import words\nTOP = words.WORD\n")
        (tmp_path / "more" / "deep.py").write_text("from .. import words\nfrom words import WORD\n")
        (tmp_path / "bare" / "inner.py").write_text("from more.deep import WORD\n")
        assert loaded(tmp_path, f"{statement}\nresult = {value}\n").module.result == "own"

    def test_neighbours_are_one_module_however_they_are_reached(self, tmp_path: Path) -> None:
        (tmp_path / "words.py").write_text("class Word: ...\n")
        (tmp_path / "other.py").write_text("import words\n")
        source = """
        import pickle, words
        import other

        def late():
            import words as again
            return again

        assert late() is words is other.words
        assert type(pickle.loads(pickle.dumps(words.Word()))) is words.Word
        """
        assert not has_functions_that_act(loaded(tmp_path, source))

    def test_lines_of_tracebacks_are_those_of_the_file(self, tmp_path: Path) -> None:
        (tmp_path / "words.py").write_text("WORD = 'own'\n")
        with pytest.raises(HookLoadError, match=r'File ".*model.py", line \d+, in <module>\n    words.missing'):
            loaded(tmp_path, "import words, words as again\nwords.missing\n")

    def test_a_module_of_that_name_that_others_use_is_given_back(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        theirs = type(sys)("utils")
        monkeypatch.setitem(sys.modules, "utils", theirs)
        (tmp_path / "utils.py").write_text("NAME = 'own'\n")
        hooks = loaded(tmp_path, "import utils\nassert utils.NAME == 'own'\n")
        assert hooks.module.utils.NAME == "own"
        assert sys.modules["utils"] is theirs

    def test_files_named_like_the_standard_library_do_not_hide_it(self, tmp_path: Path) -> None:
        (tmp_path / "random.py").write_text("raise RuntimeError('hidden')\n")
        assert not has_functions_that_act(loaded(tmp_path, "import random\nrandom.random()\n"))

    def test_dataclasses_with_postponed_annotations_work(self, tmp_path: Path) -> None:
        path = tmp_path / "model.py"
        path.write_text(
            "from __future__ import annotations\nfrom dataclasses import dataclass\n"
            "from djl_python.output_formatter import output_formatter, TextGenerationOutput\n"
            "@dataclass\nclass Line:\n    text: str\n"
            "@output_formatter\ndef write(output: TextGenerationOutput) -> str:\n"
            "    return Line(output.sequences[0].get_next_token()[0].text).text\n"
        )
        hooks = load_hooks(None, [tmp_path])
        assert hooks is not None
        assert hooks.output_formatter is not None
        assert hooks.output_formatter.signature.value == 1

    def test_the_decorators_can_come_from_dragoman(self, tmp_path: Path) -> None:
        (tmp_path / "model.py").write_text(
            "from dragoman.hooks import RequestOutput, output_formatter\n"
            "@output_formatter\ndef write(output: RequestOutput):\n    return output.sequences[0].get_next_token()[0].text\n"
        )
        assert load_hooks(None, [tmp_path]) is not None


class TestHandlers:
    def test_a_function_named_handle_is_one(self, tmp_path: Path) -> None:
        handler = loaded(tmp_path, "def handle(inputs: Input) -> Output: ...\n").handler
        assert handler is not None
        assert (handler.name, handler.is_async, handler.is_entry_point) == ("handle", False, False)

    def test_a_value_of_that_name_is_none(self, tmp_path: Path) -> None:
        assert loaded(tmp_path, "handle = 5\n").handler is None

    def test_the_option_names_another_one(self, tmp_path: Path) -> None:
        write_file(tmp_path, "def handle(inputs): ...\n\nasync def answer(inputs): ...\n", "own.py")
        hooks = load_hooks("own", [tmp_path], handler_name="answer")
        assert hooks is not None
        assert hooks.handler is not None
        assert (hooks.handler.name, hooks.handler.is_async, hooks.handler.is_entry_point) == ("answer", True, True)

    def test_an_object_that_can_be_called_may_be_one(self, tmp_path: Path) -> None:
        source = "class Handler:\n    async def __call__(self, inputs): ...\n\nhandle = Handler()\n"
        handler = loaded(tmp_path, source).handler
        assert handler is not None
        assert handler.is_async

    def test_a_name_that_the_file_lacks_is_refused(self, tmp_path: Path) -> None:
        write_file(tmp_path, "def handle(inputs): ...\n")
        with pytest.raises(
            HookLoadError, match=r"option.handler=answer: must be a function of .*model.py, which has none"
        ):
            load_hooks(None, [tmp_path], handler_name="answer")

    def test_a_name_without_a_file_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(HookLoadError, match=r"option.handler=answer: .* there is no model.py in"):
            load_hooks(None, [tmp_path], handler_name="answer")
