"""Plan -> text. One Jinja environment; a template gets one context object and prints it."""

from __future__ import annotations

import hashlib
import keyword
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import jinja2

from codegen.errors import PlanInvalid
from codegen.launching import ROW_TILE, SLOT_TILE, Launching
from codegen.plan import Kernel, Launch, Plan, Section

TEMPLATES = Path(__file__).resolve().parent.parent / "templates"


@dataclass(frozen=True)
class Provenance:
    """What a generated file says about where it comes from: no time, host or absolute path."""

    generator: str
    command: str
    spec_name: str
    spec_sha256: str
    template: str
    template_sha256: str
    target: str
    plan_sha256: str


@dataclass(frozen=True)
class LaunchView:
    """A launch as text: everything is decided."""

    comment: str
    kernel: str
    grid: str
    args: tuple[tuple[str, str], ...]
    options: str


@dataclass(frozen=True)
class SectionView:
    """A section as text."""

    name: str
    doc: str
    params: list[str]
    locals: tuple[tuple[str, str], ...]
    launches: tuple[LaunchView, ...]


def literal(value: object) -> str:
    """A Python literal that reads back as `value`."""
    if isinstance(value, float) and value in (float("inf"), float("-inf")):
        return f'float("{value}")'
    if isinstance(value, (bool, int, float, str)) or (isinstance(value, tuple) and all(type(v) is int for v in value)):
        return repr(value)
    raise PlanInvalid(node=repr(value), detail="not a literal")


def ident(value: object) -> str:
    """A Python identifier, refused if it is not one."""
    if isinstance(value, str) and value.isidentifier() and not keyword.iskeyword(value):
        return value
    raise PlanInvalid(node=repr(value), detail="not an identifier")


def comment(value: object) -> str:
    """Text that stays inside one comment or docstring line, refused if it could end it."""
    text = str(value)
    if text.isprintable() and '"""' not in text and "\\" not in text:
        return text
    raise PlanInvalid(node=repr(value), detail="does not fit in one comment line")


@cache
def environment() -> jinja2.Environment:
    """The only Jinja environment of the project."""
    env = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,
    )
    env.filters["literal"] = literal
    env.filters["ident"] = ident
    env.filters["comment"] = comment
    return env


def template_sha256(name: str) -> str:
    """Hash of a template's text."""
    return hashlib.sha256((TEMPLATES / name).read_bytes()).hexdigest()


def _provenance(plan: Plan, command: str, template: str) -> Provenance:
    digest = template_sha256(template)
    return Provenance(plan.generator, command, plan.name, plan.spec_sha256, template, digest, plan.target, plan.sha256)


def render_kernel(plan: Plan, kernel: Kernel, command: str) -> str:
    """The module of one kernel instance."""
    macros: Any = environment().get_template("kernels/_header.j2").module
    return str(macros.head(kernel, _provenance(plan, command, kernel.template))) + kernel_text(kernel)


@lru_cache(maxsize=1024)
def kernel_text(kernel: Kernel) -> str:
    """A kernel's module below its header. Constants in lower case steer the template, upper case ones are printed."""
    macros: Any = environment().get_template("kernels/_header.j2").module
    printed = [(name, value) for name, value in kernel.constants if name.isupper()]
    switches = {name: value for name, value in kernel.constants if not name.isupper()}
    constants = macros.constants(printed).rstrip("\n")
    return environment().get_template(kernel.template).render(kernel=kernel, constants=constants, **switches)


def render_step(plan: Plan, command: str) -> str:
    """The module of the step function."""
    template, launching = "package/step.py.j2", Launching(plan)
    return (
        environment()
        .get_template(template)
        .render(
            plan=plan,
            provenance=_provenance(plan, command, template),
            sections=[_section_view(launching, section) for section in plan.sections],
            options=_dict_text(launching.common_options),
            own_options={name: _dict_text(options) for name, options in launching.own_options.items()},
            row_tiles=launching.common_tiles[ROW_TILE],
            slot_tiles=launching.common_tiles[SLOT_TILE],
        )
    )


def _dict_text(options: Mapping[str, Any]) -> str:
    return "{" + ", ".join(f'"{ident(name)}": {literal(value)}' for name, value in options.items()) + "}"


def _section_view(launching: Launching, section: Section) -> SectionView:
    used = _symbols(launching, section)
    of_slot = "rows_per_slot" if "rows_per_slot" in section.params else "rows"
    derived = {
        "rows": "bucket * rows_per_slot" if "rows_per_slot" in section.params else "bucket",
        "tile": "row_tile(rows, ROW_TILES)",
        "row_blocks": "-(-rows // tile)",
        "slot_tile": f"row_tile({of_slot}, SLOT_TILES)",
        "slot_blocks": f"-(-{of_slot} // slot_tile)",
    }
    for kind, tile, blocks, sizes in launching.own_tiles(section):
        over = "rows" if kind == ROW_TILE else of_slot
        derived |= {tile: f"row_tile({over}, {literal(sizes)})", blocks: f"-(-{over} // {tile})"}
    local = tuple((name, text) for name, text in derived.items() if name in used and name not in section.params)
    launches = tuple(_launch_view(launching, launch) for launch in section.launches)
    return SectionView(section.name, section.doc, list(section.params), local, launches)


def _symbols(launching: Launching, section: Section) -> set[str]:
    """Names that the section's launches mention; a tiled kernel needs its tile, and a tile of all rows needs `rows`."""
    used: set[str] = set()
    for launch in section.launches:
        used |= {size for size in launching.grid(launch) if isinstance(size, str)}
        used |= {value for _, value in launch.args}
        used |= {launching.tile(launch)} | ({"rows"} if launching.kind(launch) == ROW_TILE else set())
    return used


def _launch_view(launching: Launching, launch: Launch) -> LaunchView:
    buffers = launching.buffers
    args = [(name, f"b.{ident(value)}" if value in buffers else ident(value)) for name, value in launch.args]
    if tile := launching.tile(launch):
        args.append(("BLOCK_M", tile))
    sizes = launching.grid(launch)
    grid = ", ".join(str(size) for size in sizes) + ("," if len(sizes) == 1 else "")
    note = f"{launch.layer}: {launch.note}"
    return LaunchView(note, launch.kernel, grid, tuple(args), launching.options(launch))


def render_target(plan: Plan, command: str) -> dict[str, str]:
    """Files of one target's subpackage, by path relative to it."""
    empty = environment().get_template("package/empty.py.j2")
    files = {
        "__init__.py": empty.render(generator=plan.generator, command=command, doc=f"{plan.name} on {plan.target}."),
        "kernels/__init__.py": empty.render(
            generator=plan.generator, command=command, doc="One kernel instance per file."
        ),
        "step.py": render_step(plan, command),
        "plan.json": plan.to_json(),
    }
    for kernel in plan.kernels:
        files[f"kernels/{kernel.name}.py"] = render_kernel(plan, kernel, command)
    return files


def render_package(plans: list[Plan], command: str) -> dict[str, str]:
    """All files of a package, by path relative to its folder."""
    first = plans[0]
    files = {
        "__init__.py": environment()
        .get_template("package/init.py.j2")
        .render(generator=first.generator, command=command, name=first.name, targets=[plan.target for plan in plans])
    }
    for plan in plans:
        folder = target_folder(plan.target)
        rendered = render_target(plan, f"{command} --target {plan.target}")
        files |= {f"{folder}/{path}": text for path, text in rendered.items()}
    return files


def target_folder(target: str) -> str:
    """Subpackage name of a target: `cpu`, `cuda_90`."""
    return ident(target.replace(":", "_"))
