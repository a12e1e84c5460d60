"""Programs in files of any format, in folders that XLA dumped, on standard input, and results on standard output."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from compiler import parse
from compiler.errors import BackendError, HlogymError, HloSyntaxError, UnknownNameError
from compiler.frontends.hlo_proto import hlo_proto
from compiler.frontends.stablehlo import jaxlib_modules
from compiler.interpreter import evaluate
from env.suites import ManifestError, load_suite, program_files
from env.suites.dumps import dump_of
from env.suites.program_files import ProgramFileError, read_hlo_text
from experiments import inputs
from experiments.inputs import InputError, load_inputs, program_of, read_valid_module, save_outputs
from experiments.results import check_output, write_text

TEXT = "HloModule doubled\n\nENTRY e { x = f32[3] parameter(0)  ROOT r = f32[3] add(x, x) }\n"
TRIVIAL = "HloModule same\n\nENTRY e { ROOT x = f32[3] parameter(0) }\n"
X = np.array([1, -2, 3], np.float32)


def module_proto() -> bytes:
    pytest.importorskip("jax")
    _, hlo = jaxlib_modules()
    return bytes(hlo.hlo_module_from_text(TEXT).as_serialized_hlo_module_proto())


def test_files_of_other_editors_are_read(tmp_path: Path) -> None:
    for name, data in (("mark", b"\xef\xbb\xbf" + TEXT.encode()), ("lines", TEXT.replace("\n", "\r\n").encode())):
        (tmp_path / f"{name}.hlo").write_bytes(data)
        assert str(parse(read_hlo_text(tmp_path / f"{name}.hlo"))) == str(parse(TEXT))
    assert [p.name for p in load_suite(tmp_path).programs] == ["lines", "mark"]


def whole_proto() -> bytes:
    """Return an HloProto, whose field 1 is the module, with a field 3 after it as in XLA's dumps."""
    module, size = module_proto(), bytearray()
    left = len(module)
    while left > 127:
        size.append(left & 127 | 128)
        left >>= 7
    return b"\x0a" + bytes([*size, left]) + module + b"\x1a\x00"


def mlir_text() -> bytes:
    jax = pytest.importorskip("jax")
    return str(jax.jit(lambda x: x + x).lower(X).as_text()).encode()


def mlir_bytecode() -> bytes:
    jax = pytest.importorskip("jax")
    from jax._src.interpreters import mlir

    return bytes(mlir.module_to_bytecode(jax.jit(lambda x: x + x).lower(X).compiler_ir("stablehlo")))


@pytest.mark.parametrize("name", ["p.hlo", "p.txt", "p.pb", "p"])
@pytest.mark.parametrize("data", [TEXT.encode, module_proto, whole_proto, mlir_text, mlir_bytecode])
def test_the_contents_decide_the_format(data: Callable[[], bytes], name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_bytes(data())
    module = read_valid_module(program_of(str(path)))
    (out,) = evaluate(module, [X])
    assert out.tolist() == [2, -4, 6]
    (program,) = load_suite(path).programs
    assert (program.name, parse(program.text()).fingerprint()) == ("p", module.fingerprint())


def test_a_changed_file_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "p.txt"
    path.write_text(TEXT)
    assert read_hlo_text(path) == TEXT
    path.write_text(TRIVIAL)
    assert read_hlo_text(path) == TRIVIAL


@pytest.mark.parametrize("data", [b"\x7fELF\x02\x01\x00", b"\xff\xfe", b"\x0a\xff\xff\xff", b"\0"])
def test_other_files_are_no_programs(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "program"
    path.write_bytes(data)
    with pytest.raises(ProgramFileError, match=r"program holds no program: it is not text"):
        program_of(str(path)).text()


@pytest.mark.skipif(not Path("/dev/zero").exists(), reason="there is no /dev/zero")
def test_a_file_without_an_end_is_no_program(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program_files, "MOST_BYTES", 1 << 20)
    monkeypatch.setattr(inputs, "MOST_BYTES", 1 << 20)
    with pytest.raises(OSError, match="longer than 1048576 bytes"):
        read_hlo_text(Path("/dev/zero"))
    inputs._standard_input.cache_clear()
    with Path("/dev/zero").open() as endless:
        monkeypatch.setattr(sys, "stdin", endless)
        with pytest.raises(InputError, match="more than 1048576 bytes"):
            program_of("-")


def test_damaged_protos_and_bytecode_are_reported(tmp_path: Path) -> None:
    pytest.importorskip("jax")
    for data in (module_proto()[:40] + b"\xff\xff", mlir_bytecode()[:60]):
        path = tmp_path / "damaged.pb"
        path.write_bytes(data)
        with pytest.raises((HloSyntaxError, ProgramFileError)):
            read_hlo_text(path)


def test_protos_need_jax(monkeypatch: pytest.MonkeyPatch) -> None:
    data = module_proto()
    monkeypatch.setitem(sys.modules, "jax._src.lib", None)
    with pytest.raises(BackendError, match=r"pip install 'hlogym\[jax\]'"):
        hlo_proto(data)


# ---- folders that XLA dumped


@pytest.fixture
def dump(tmp_path: Path) -> Path:
    folder = tmp_path / "dump"
    folder.mkdir()
    for number, name, text in ((0, "jit_same", TRIVIAL), (2, "jit_step", TEXT), (10, "jit_step", TEXT)):
        stem = f"module_{number:04}.{name}"
        (folder / f"{stem}.before_optimizations.txt").write_text(text)
        (folder / f"{stem}.cpu_after_optimizations.txt").write_text(text.replace("add(x, x)", "subtract(x, x)"))
        (folder / f"{stem}.cpu_after_optimizations-buffer-assignment.txt").write_text("BufferAssignment:")
        (folder / f"{stem}.debug_options").write_text("")
    return folder


def test_a_dump_with_several_modules_lists_them(dump: Path) -> None:
    with pytest.raises(InputError) as caught:
        program_of(str(dump))
    message = str(caught.value)
    assert f"{dump} has 3 modules before optimization; name one, such as {dump}:module_0010.jit_step:" in message
    assert message.splitlines()[1:] == [
        f"  {name} ({len(text)} bytes)"
        for name, text in (
            ("module_0000.jit_same", TRIVIAL),
            ("module_0002.jit_step", TEXT),
            ("module_0010.jit_step", TEXT),
        )
    ]


def test_modules_of_a_dump_are_named_by_a_part(dump: Path) -> None:
    before, after = program_of(f"{dump}:0002"), program_of(f"{dump}:0002:after")
    assert before.name == after.name == "module_0002.jit_step"
    assert "add(" in before.text()
    assert "subtract(" in after.text()
    with pytest.raises(InputError, match="no such module after optimization"):
        program_of(f"{dump}:missing:after")
    for path in dump.glob("*jit_s*e*.*"):
        if "0002" not in path.name:
            path.unlink()
    assert program_of(str(dump)).name == "module_0002.jit_step"
    assert program_of(f"{dump}:after").text() == after.text()


def test_text_goes_before_protos(dump: Path) -> None:
    (dump / "module_0002.jit_step.before_optimizations.hlo.pb").write_bytes(b"\x0a")
    (dump / "module_0003.jit_more.before_optimizations.hlo.pb").write_bytes(b"\x0a")
    found = dump_of(dump)
    assert found is not None
    assert [p.name.split(".", 1)[0] + p.suffix for p in found.files] == [
        "module_0000.txt", "module_0002.txt", "module_0003.pb", "module_0010.txt"
    ]  # fmt: skip


def test_a_dump_is_a_suite(dump: Path) -> None:
    with pytest.warns(UserWarning, match=r"left out of the suite: module_0000\.jit_same \(it computes nothing"):
        suite = load_suite(str(dump))
    assert (suite.name, [p.name for p in suite.programs]) == ("dump", ["module_0002.jit_step", "module_0010.jit_step"])
    after = load_suite(f"{dump}:step:after")
    assert ["subtract(" in p.text() for p in after.programs] == [True, True]
    with pytest.raises(ManifestError, match="no such module"):
        load_suite(f"{dump}:missing")


def test_other_folders_are_no_dumps(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("notes")
    assert dump_of(tmp_path) is None
    with pytest.raises(HlogymError, match="is a folder; name one of the files in it"):
        program_of(str(tmp_path))
    with pytest.raises(UnknownNameError):
        load_suite(f"{tmp_path}:after")


# ---- standard input and output


class Stream:
    def __init__(self, data: bytes = b"") -> None:
        self.buffer = io.BytesIO(data)

    def flush(self) -> None: ...


def test_standard_input_is_a_program(monkeypatch: pytest.MonkeyPatch) -> None:
    for data, message in ((TEXT.encode(), None), (b" \n", "standard input is empty")):
        inputs._standard_input.cache_clear()
        monkeypatch.setattr(sys, "stdin", Stream(data))
        if message is None:
            assert program_of("-").text() == program_of("-").text() == TEXT
        else:
            with pytest.raises(InputError, match=message):
                program_of("-")
    inputs._standard_input.cache_clear()


def test_standard_output_takes_text_and_arrays(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    stream: Any = Stream()
    monkeypatch.setattr(sys, "stdout", stream)
    check_output(Path("-"))
    write_text(Path("-"), "text")
    assert stream.buffer.getvalue() == b"text"
    stream.buffer = io.BytesIO()
    save_outputs(Path("-"), [X])
    (tmp_path / "out.npz").write_bytes(stream.buffer.getvalue())
    assert load_inputs(tmp_path / "out.npz", parse(TEXT))[0].tolist() == X.tolist()
    check_output(tmp_path / "out.npz")  # messages go to standard output again
