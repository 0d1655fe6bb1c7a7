"""Without the library of kernels everything is as it was, and says so in one line; asked for, it is missed."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from dragoman.kernels import presence
from dragoman.kernels.native import Library, LibraryMissing, library
from dragoman.models import ModelError, ModelOptions, load_model
from dragoman.models.profile import CPU_INFO, kernel_profile, tell_library
from dragoman.tools.doctor.machine import Machine
from dragoman.tools.doctor.software import software_facts, software_section
from tests.support.family_checkpoint import read_case, write_case
from tests.support.packed_layouts import LLAMA
from tests.support.random_checkpoint import write_checkpoint

BEST = (  # and their flags in /proc/cpuinfo
    ("avx512vnni", "avx512_vnni"),
    ("avxvnni", "avx_vnni"),
    ("avx2", "avx2"),
    ("i8mm", "i8mm"),
    ("neon", "asimddp"),
)


def test_the_best_instructions_of_the_processor_are_used_unless_they_are_held_down(kernels: Library) -> None:
    flags = next(
        (line for line in CPU_INFO.read_text().splitlines() if line.startswith(("flags", "Features"))), ""
    ).split()
    usable = [*(name for name, flag in BEST if flag in flags), "plain"]
    held = os.environ.get(presence.HELD)
    usable = usable[usable.index(held) :] if held in usable else usable
    assert kernels.instruction_set == usable[0]
    code = "from dragoman.kernels.native import library; print(library().instruction_set)"
    environment = {**os.environ, presence.HELD: usable[-2] if len(usable) > 1 else "plain"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.split() == [environment[presence.HELD]]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where a build without a compiler has left its reason."""
    folder = tmp_path / "kernels"
    folder.mkdir()
    (folder / "why_not.txt").write_text("built without a C++ compiler", encoding="utf-8")
    monkeypatch.setattr(presence, "PLACE", folder)
    monkeypatch.delenv(presence.HELD, raising=False)
    tell_library.cache_clear()
    return folder


def test_a_model_is_loaded_without_it_and_one_line_says_so(
    place: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    checkpoint = write_checkpoint(LLAMA, tmp_path / "model")
    with caplog.at_level(logging.INFO, logger="dragoman.models.profile"):
        loaded = [load_model(checkpoint, ModelOptions()) for _ in range(2)]
    assert {one.profile.kernels for one in loaded} == {"openvino"}
    assert [record.message for record in caplog.records] == [
        "OpenVINO's kernels are used; dragoman's own are not here: built without a C++ compiler; install dragoman again "
        "where there is a C++ compiler"
    ]


def test_who_asks_for_openvino_is_told_nothing(place: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    load_model(write_checkpoint(LLAMA, tmp_path / "model"), ModelOptions(kernels="openvino"))
    assert caplog.records == []


def test_a_model_that_needs_it_is_refused(place: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError) as raised:
        load_model(write_case("lfm2", read_case("lfm2"), tmp_path), ModelOptions(weight_type="f32"))
    assert str(raised.value) == (
        "Lfm2ForCausalLM has layers that only dragoman's own kernels compute, and they are not here: built without a C++ "
        "compiler; install dragoman again where there is a C++ compiler"
    )


def test_who_asks_for_it_is_told_what_to_do(place: Path) -> None:
    with pytest.raises(ModelError) as raised:
        kernel_profile(ModelOptions(kernels="own"))
    assert str(raised.value) == (
        "kernels 'own' are not here: built without a C++ compiler; must be auto or openvino, or install dragoman again "
        "where there is a C++ compiler"
    )


def test_the_doctor_notes_it(place: Path, tmp_path: Path) -> None:
    section = software_section(software_facts(Machine(tmp_path)))
    assert [finding.text for finding in section.findings if "kernels" in finding.text] == [
        "dragoman's own kernels are not here: built without a C++ compiler"
    ]
    assert section.facts["has_own_kernels"] is False


def test_a_clone_whose_sources_have_changed_is_told_at_the_start_and_by_the_doctor(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    sources = tmp_path / "native"
    monkeypatch.setattr(presence, "SOURCES", sources)
    (place / presence.LIBRARY).touch()
    stamp = place / "built_from.txt"

    def told() -> list[str]:
        caplog.clear()
        tell_library.cache_clear()
        with caplog.at_level(logging.INFO, logger="dragoman.models.profile"):
            tell_library("openvino")
            tell_library("own")
        findings = software_section(software_facts(Machine(tmp_path))).findings
        return [
            *(record.message for record in caplog.records),
            *(one.text for one in findings if "native/" in one.text),
        ]

    stamp.write_text(f"abc 123 {version('openvino')}", encoding="utf-8")
    assert told() == []  # installed from a wheel: there are no sources
    sources.mkdir()
    for name in ("CMakeLists.txt", "kernels.cpp", "kernels.hpp"):
        (sources / name).write_text(name, encoding="utf-8")
    stamp.write_text(f"abc {presence.sources_digest(sources)} {version('openvino')}", encoding="utf-8")
    assert told() == []
    for changed in sources.iterdir():
        text = changed.read_text(encoding="utf-8")
        changed.write_text(f"{text} // changed", encoding="utf-8")
        assert told() == [f"{presence.STALE}; {presence.BUILD_CLONE}", presence.STALE]
        changed.write_text(text, encoding="utf-8")
    stamp.write_text(f"abc {version('openvino')}", encoding="utf-8")
    assert told() == []  # built before sources were recorded


def test_tests_may_have_it_count_as_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(presence.HELD, "none")
    with pytest.raises(LibraryMissing, match="DRAGOMAN_KERNELS_ISA is none"):
        library()
    assert kernel_profile(ModelOptions()).kernels == "openvino"


def test_a_library_for_another_openvino_is_not_loaded(place: Path) -> None:
    (place / presence.LIBRARY).touch()
    (place / "built_from.txt").write_text("abc 2020.1.0", encoding="utf-8")
    with pytest.raises(LibraryMissing, match=r"built for OpenVINO 2020\.1\.0, and .* is installed"):
        library()


def test_a_file_that_is_no_library_is_missed_with_the_reason(place: Path) -> None:
    (place / presence.LIBRARY).write_bytes(b"no library")
    (place / "built_from.txt").write_text(f"abc {version('openvino')}", encoding="utf-8")
    with pytest.raises(LibraryMissing, match="not loaded: "):
        library()
