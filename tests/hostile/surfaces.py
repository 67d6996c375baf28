"""What the fuzzer feeds: for each kind of input its seeds, and what reading it may do.

`feed` returns what became of an input: "accepted", or the codes of the errors. Anything else it raises is a finding.
"""

from __future__ import annotations

import ast
import hashlib
import json
import re
import sys
from io import StringIO
from math import prod
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any, Protocol

import yaml
from rich.console import Console
from safetensors.torch import load
from typer.testing import CliRunner

from autotune.compare import differences
from autotune.report import page
from autotune.tables import difference_table, results_table
from codegen.cli import app as codegen_app
from codegen.errors import CodegenError, TunedUnusable
from codegen.lower import lower
from codegen.render import render_package
from codegen.tuned import choose, current
from codegen.tuned_store import ResultFile, Results, export
from dsl.errors import MAX_LISTED, InvalidSpec
from dsl.loader import load_spec
from runtime.checked import integer, items
from runtime.checkpoints.archive import load_archive
from runtime.engine import Engine
from runtime.errors import CheckpointFileError, RuntimeStateError
from runtime.package import open_package
from runtime.safetensors_header import BITS
from runtime.weights import check_weights, open_weights, read_sources
from tests.cpu.engine.toys import toy_spec
from tests.cpu.tiers.images import LAYOUT, image_of
from tests.hostile.checkpoints import CHECKPOINTS, resealed
from tests.hostile.mutate import mutated, restructured
from tests.hostile.results import ODD, RESULTS, good_results
from tests.hostile.specs import ROOT, SPECS
from tests.hostile.subject import Good
from tests.hostile.weights import WEIGHTS, joined, split

LARGEST_SEED = 20_000  # bytes of a corpus case that is worth mutating
LONGEST_LINE = 2100
CODE = re.compile(r"\[[a-z0-9-]+\]$")
LARGEST_TENSOR = 1 << 20  # bytes
EVERY = 100  # one spec in so many also goes through the command line
MODULES = ("torch", "triton", "runtime", "kernels", "__future__", "pathlib", "collections")
Codes = list[str]


class Surface(Protocol):
    """One kind of input. share: of all inputs; name: also that of its file."""

    name: str
    share: float

    def draw(self, random: Random) -> bytes:
        """An input."""

    def feed(self, path: Path, data: bytes, number: int) -> Codes:
        """Read the input, which lies at `path` too. Raises for a finding."""


def one_line(error: Exception) -> None:
    """An error is told in one line that ends with its code and acts on no terminal."""
    text = str(error)
    assert text.isprintable() and len(text) <= LONGEST_LINE and CODE.search(text), f"badly told: {text[:300]!r}"


class Specs:
    """Specs: refused with their mistakes, each in its line, or lowered and rendered into Python that imports ours."""

    name, share = "spec", 0.5

    def __init__(self) -> None:
        files = [*ROOT.glob("specs/*.yaml"), *ROOT.glob("tests/specs/*.yaml"), *ROOT.glob("tests/unit/dsl/*.yaml")]
        self.good = [path.read_bytes() for path in sorted(files)]
        self.seeds = [*self.good, *(data for data, _ in SPECS.values() if len(data) < LARGEST_SEED)]
        self.trees = [yaml.safe_load(data) for data in self.good]

    def draw(self, random: Random) -> bytes:
        """Half of them are changed in structure, and then written as YAML."""
        if random.random() < 0.5:
            return mutated(random.choice((random.choice(self.good), random.choice(self.seeds))), self.seeds, random)
        tree = restructured(random.choice(self.trees), random)
        text = yaml.safe_dump(tree, sort_keys=False, allow_unicode=random.random() < 0.5)
        return text.encode("utf-8", "surrogatepass")

    def feed(self, path: Path, data: bytes, number: int) -> Codes:
        """Read it, compile a valid one, and now and then build it from the command line."""
        codes = self._read(path, data)
        if number % EVERY == 0:
            self._build(path, codes)
        return codes

    def _read(self, path: Path, data: bytes) -> Codes:
        try:
            spec = load_spec(path)
            plan = lower(spec, "cpu")
        except InvalidSpec as error:
            lines = data.count(b"\n") + data.count(b"\r") + data.count(b"\x85") + data.count(b"\xe2\x80") + 1
            assert error.errors and len(str(error).splitlines()) <= MAX_LISTED + 1
            for mistake in error.errors:
                one_line(mistake)
                assert mistake.line is None or 1 <= mistake.line <= lines, f"line {mistake.line} of {lines}"
            return [mistake.code for mistake in error.errors]
        except CodegenError as error:
            one_line(error)
            return [error.code]
        for name, text in render_package([plan], "x").items():
            if name.endswith(".py"):
                only_imports_what_it_may(ast.parse(text), name)
        return ["accepted"]

    def _build(self, path: Path, codes: Codes) -> None:
        output = path.with_name("built")
        result = CliRunner().invoke(codegen_app, ["build", str(path), "--no-aot", "-o", str(output)])
        accepted = codes == ["accepted"]
        assert result.exit_code == (0 if accepted else 2), (result.output, result.exception)
        assert output.exists() == accepted, "a refused spec left a package"
        if accepted:
            assert (output / "manifest.json").exists() and not list(output.rglob(".*"))
            remove(output)


def only_imports_what_it_may(module: ast.Module, name: str) -> None:
    """Generated code imports what templates import, and calls nothing that runs text."""
    for node in ast.walk(module):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or "kernels"]
        assert all(each.split(".")[0] in MODULES for each in names), f"{name} imports {names}"
        assert not (isinstance(node, ast.Name) and node.id in ("eval", "exec", "compile", "__import__")), name


def remove(folder: Path) -> None:
    """A folder of ours."""
    for path in sorted(folder.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()
    folder.rmdir()


class Weights:
    """safetensors files: refused, or every tensor of the plan is there and can be read."""

    name, share = "weights", 0.3

    def __init__(self, good: Good) -> None:
        self.plan = good.package.plan
        changed = (change(good.weights) for change, _ in WEIGHTS.values())
        self.seeds = [good.weights, *(data for data in changed if len(data) < 10 * LARGEST_SEED)]
        self.header, self.body = split(good.weights)
        self.start = len(good.weights) - len(self.body)

    def draw(self, random: Random) -> bytes:
        """Changes in the structure of the header, in its text, or in the length before it; or anywhere."""
        kind = random.randrange(4)
        if kind == 0:
            return mutated(random.choice(self.seeds), self.seeds, random)
        if kind == 1:
            text = json.dumps(self.header).encode()
            return joined(mutated(text, [text], random), self.body)
        if kind == 2:
            return mutated(self.seeds[0][: random.choice((8, 16, self.start))], self.seeds, random) + self.body
        header = restructured(self.header, random)
        return joined(header, self.body) if random.random() < 0.3 else laid_out(header)

    def feed(self, path: Path, data: bytes, number: int) -> Codes:
        """Open, check, and read every tensor."""
        try:
            weights = open_weights(path)
            check_weights(self.plan, weights)
        except RuntimeStateError as error:
            one_line(error)
            return [error.code]
        for buffer in self.plan.role("weight"):
            for source, tensor in zip(buffer.sources, read_sources(weights, buffer), strict=True):
                assert tuple(tensor.shape) == source.shape
                tensor.float().sum()
        return ["accepted"]


def laid_out(header: Any) -> bytes:
    """A file in which the tensors of a header, where they have a size, lie one after another: what is read further."""
    end = 0
    for entry in header.values() if isinstance(header, dict) else ():
        try:
            size = prod(items(entry["shape"], integer)) * BITS[entry["dtype"]] // 8
            if size < LARGEST_TENSOR:
                entry["data_offsets"] = [end, end := end + size]
        except (TypeError, KeyError, ValueError):
            continue
    return joined(header, bytes(end))


class Packages:
    """Manifests, and plans with a manifest that fits them: refused, or an engine can be made of them."""

    name, share = "package", 0.1

    def __init__(self, good: Good) -> None:
        self.folder, self.weights = good.folder, load(good.weights)
        self.files = {name: (good.folder / name).read_bytes() for name in ("manifest.json", "cpu/plan.json")}
        self.trees = {name: json.loads(data) for name, data in self.files.items()}

    def draw(self, random: Random) -> bytes:
        """One of the two files, its name before it."""
        name = random.choice(list(self.files))
        if random.random() < 0.5:
            data = mutated(self.files[name], [*self.files.values()], random)
        else:
            data = json.dumps(restructured(self.trees[name], random)).encode()
        return name.encode() + b"\n" + data

    def feed(self, path: Path, data: bytes, number: int) -> Codes:
        """Put it into the good package, open that, and put things right again."""
        name, _, content = data.partition(b"\n")
        self._write(name.decode(), content)
        before = set(sys.modules)
        try:
            Engine(open_package(self.folder), self.weights, threads=1).close()
            return ["accepted"]
        except RuntimeStateError as error:
            one_line(error)
            return [error.code]
        finally:
            for module in set(sys.modules) - before:
                if module.startswith("stepforge_package_"):
                    del sys.modules[module]
            for file, original in self.files.items():
                (self.folder / file).write_bytes(original)

    def _write(self, name: str, content: bytes) -> None:
        (self.folder / name).write_bytes(content)
        if name != "manifest.json":
            manifest = json.loads(self.files["manifest.json"])
            manifest["files"][name] = hashlib.sha256(content).hexdigest()
            (self.folder / "manifest.json").write_text(json.dumps(manifest))


class Tuned:
    """Files of tuned results: refused, or shown, compared, stored and chosen from without harm."""

    name, share = "tuned", 0.1

    def __init__(self) -> None:
        self.good, self.plan = good_results(), lower(toy_spec(), "cpu")
        self.seeds = [self.good, *(data for make in (RESULTS | ODD).values() if len(data := make()) < LARGEST_SEED)]
        self.tree = json.loads(self.good)

    def draw(self, random: Random) -> bytes:
        """Half of them are changed in structure."""
        if random.random() < 0.5:
            return mutated(random.choice((self.good, random.choice(self.seeds))), self.seeds, random)
        return json.dumps(restructured(self.tree, random)).encode()

    def feed(self, path: Path, data: bytes, number: int) -> Codes:
        """Read it; what is taken goes through everything that is done with results."""
        try:
            file = ResultFile(path)
        except TunedUnusable as error:
            one_line(error)
            return [error.code]
        found, console = file.all(), Console(file=StringIO(), width=120, emoji=False)
        console.print(results_table("x", found, current(found)))
        console.print(difference_table("x", differences(found, found[:1]), "one", "other"))
        assert "<script" not in page(found, current(found))
        for choice in choose(self.plan, file):
            json.dumps(choice.plain())
        with TemporaryDirectory() as folder:
            for result in found:
                Results(Path(folder)).write(result)
                assert Results(Path(folder)).find(result.identity) == result
        path.write_text(export(found))
        assert ResultFile(path).all() == found
        return ["accepted"]


class Checkpoints:
    """Archives of checkpoints: refused, or what was saved, to the bit."""

    name, share = "checkpoint", 0.1

    def __init__(self, good: Good) -> None:
        self.archive = good.archive
        changed = (change(good.archive) for change, _ in CHECKPOINTS.values())
        self.seeds = [good.archive, *(data for data in changed if len(data) < LARGEST_SEED)]
        self.images = {image.tokens: image for image in (image_of(range(n)) for n in (5, 9))}

    def draw(self, random: Random) -> bytes:
        """Changes anywhere, or in a header whose checksum is made to match."""
        if random.random() < 0.5:
            return mutated(random.choice(self.seeds), self.seeds, random)

        def change(header: dict[str, Any]) -> None:
            meta = header["__metadata__"]
            listed = restructured(json.loads(meta["manifest"]), random)
            new = restructured({name: value for name, value in header.items() if name != "__metadata__"}, random)
            if random.random() < 0.5:
                meta["manifest"] = json.dumps(listed)
            elif isinstance(new, dict):
                header.clear()
                header.update(new, __metadata__=meta)

        return resealed(change)(self.archive)

    def feed(self, path: Path, data: bytes, number: int) -> Codes:
        """Load it; whatever comes is an image that was saved."""
        try:
            images = load_archive(path, LAYOUT)
        except CheckpointFileError as error:
            one_line(error)
            return [error.code]
        for image in images:
            saved = self.images[image.tokens]
            assert image.parts.keys() == saved.parts.keys()
            assert all(
                (image.parts[n].view(-1) == t.view(-1)).all() for n, t in saved.parts.items() if t.is_floating_point()
            )
        return ["accepted"]
