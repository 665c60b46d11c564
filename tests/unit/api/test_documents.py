from __future__ import annotations

import pytest

from pdcluster_api.documents import Document, read_documents
from pdcluster_api.problems import Problem, format_path


def only(text: str) -> Document:
    documents = read_documents(text)
    assert not isinstance(documents, Problem), documents
    [document] = documents
    return document


def rejected(text: str) -> Problem:
    problem = read_documents(text)
    assert isinstance(problem, Problem)
    return problem


@pytest.mark.parametrize(
    ("scalar", "value"),
    [
        ("1", 1),
        ("-7", -7),
        ("0", 0),
        ("0x1F", 31),
        ("1.5", 1.5),
        ("1e3", 1000.0),
        ("true", True),
        ("yes", True),
        ("off", False),
        # Kubernetes' reader takes neither dates nor base sixty, PyYAML's own would.
        ("1:4", "1:4"),
        ("2:1", "2:1"),
        ("190:20:30", "190:20:30"),
        ("2026-11-29", "2026-11-29"),
        ("2026-11-29T12:00:00Z", "2026-11-29T12:00:00Z"),
        ("1_000", "1_000"),
        ("08", "08"),
        ("64Gi", "64Gi"),
        ("'1'", "1"),
        ("Qwen/Qwen3-8B", "Qwen/Qwen3-8B"),
    ],
)
def test_scalars_are_read_as_kubernetes_reads_them(scalar: str, value: object) -> None:
    assert only(f"a: {scalar}\n").data == {"a": value}


def test_every_field_has_its_line() -> None:
    document = only("a:\n  b: 1\n  c:\n  - x\n  - y: 2\n")
    assert {format_path(path): line for path, line in document.lines.items() if path} == {
        "a": 1,
        "a.b": 2,
        "a.c": 3,
        "a.c[0]": 4,
        "a.c[1]": 5,
        "a.c[1].y": 5,
    }


def test_a_later_document_counts_lines_from_the_files_beginning() -> None:
    documents = read_documents("a: 1\n---\nb: 2\n---\n\n\nc: 3\n")
    assert not isinstance(documents, Problem)
    assert [document.line for document in documents] == [1, 3, 7]


def test_a_key_that_stands_twice_is_a_problem() -> None:
    [problem] = only("a: 1\nb: 2\na: 3\n").problems
    assert (problem.path, problem.line) == (("a",), 3)
    assert "twice" in problem.message


def test_a_null_is_a_problem_wherever_it_stands() -> None:
    problems = only("a:\nb: ~\nc: null\nd: [1, null]\n").problems
    assert [format_path(problem.path) for problem in problems] == ["a", "b", "c", "d[1]"]


def test_an_alias_stands_for_what_it_names() -> None:
    assert only("a: &x {b: 1}\nc: *x\n").data == {"a": {"b": 1}, "c": {"b": 1}}


def test_a_merge_key_brings_its_fields() -> None:
    assert only("a: &x {b: 1}\nc:\n  <<: *x\n  d: 2\n").data == {
        "a": {"b": 1},
        "c": {"b": 1, "d": 2},
    }


def test_a_key_that_is_no_word_is_rejected() -> None:
    assert "unhashable key" in rejected("? [1, 2]\n: x\n").message


def test_aliases_that_multiply_a_document_are_rejected() -> None:
    bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n"
    for level in range(1, 9):
        bomb += f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * 10)}]\n"
    assert "aliases" in rejected(bomb).message


def test_a_file_that_is_far_too_long_is_rejected() -> None:
    assert "longer than" in rejected("# " + "x" * 1024 * 1024 + "\n").message


def test_a_file_nested_too_deeply_is_rejected() -> None:
    assert "YAML" in rejected("[" * 20_000).message


def test_a_recursive_alias_is_rejected() -> None:
    documents = read_documents("a: &x [*x]\n")
    assert isinstance(documents, Problem)
