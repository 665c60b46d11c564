"""A PDCluster from YAML text: every problem at once, each with place, value and remedy.

Pure: takes text, reads no file. The file must hold exactly one PDCluster. Documents of other kinds
(a Namespace, a Secret) are skipped, as in any manifest, and named in the result; a second
PDCluster, another version of it, or a kind that looks like a misspelling is rejected.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from dataclasses import dataclass

from pydantic import ValidationError

from pdcluster_api import defaults
from pdcluster_api.documents import Document, read_documents
from pdcluster_api.findings import problems_of
from pdcluster_api.problems import Problem, ResourceError
from pdcluster_api.support import not_yet
from pdcluster_api.v1alpha1 import PDCluster

__all__ = ["LoadedCluster", "load_cluster"]

_KIND = "PDCluster"


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedCluster:
    """A PDCluster, and what else its file held.

    Attributes:
        cluster: The resource; it obeys every rule.
        skipped: Kinds of the file's other documents, in order.
    """

    cluster: PDCluster
    skipped: tuple[str, ...]


def load_cluster(text: str, *, source: str) -> LoadedCluster:
    """Read the one PDCluster of a YAML text.

    Args:
        text: One or more YAML documents.
        source: Name of the file, for messages.

    Raises:
        ResourceError: The text is not YAML, holds no or several PDClusters, or the PDCluster breaks
            a rule or asks for something not yet supported.
    """
    documents = read_documents(text)
    if isinstance(documents, Problem):
        raise ResourceError(source, (documents,))
    document, skipped = _only_cluster(documents, source)
    if document.problems:
        raise ResourceError(source, document.problems)
    cluster = _validated(document, source)
    missing = not_yet(cluster, has_defaults=_is_stored(document))
    if missing:
        raise ResourceError(source, _in_order(missing, document))
    return LoadedCluster(cluster=cluster, skipped=skipped)


def _is_stored(document: Document) -> bool:
    """Whether it was read from an API server, which gives a uid and writes defaults."""
    metadata = document.data.get("metadata") if isinstance(document.data, Mapping) else None
    return isinstance(metadata, Mapping) and "uid" in metadata


def _only_cluster(documents: tuple[Document, ...], source: str) -> tuple[Document, tuple[str, ...]]:
    problems: list[Problem] = []
    clusters: list[Document] = []
    skipped: list[str] = []
    for document in documents:
        kind = _kind_of(document)
        if isinstance(kind, Problem):
            problems.append(kind)
        elif kind == _KIND:
            clusters.append(document)
        else:
            skipped.append(kind)
    if not problems and len(clusters) != 1:
        problems.append(_not_one(clusters, skipped))
    if problems:
        raise ResourceError(source, tuple(problems))
    return clusters[0], tuple(skipped)


def _kind_of(document: Document) -> str | Problem:
    data = document.data
    if not isinstance(data, Mapping):
        return Problem(
            message="is not a resource; it must begin with apiVersion, kind, metadata and spec",
            line=document.line,
        )
    kind, version = data.get("kind"), data.get("apiVersion")
    if not isinstance(kind, str) or not isinstance(version, str):
        return Problem(
            message=(
                "has no apiVersion or no kind; begin it with "
                f"apiVersion: {defaults.API_VERSION} and kind: {_KIND}"
            ),
            line=document.line,
        )
    ours = version.split("/")[0] == defaults.API_GROUP
    if kind == _KIND and version != defaults.API_VERSION:
        return Problem(
            path=("apiVersion",),
            value=version,
            message=f"must be {defaults.API_VERSION}",
            line=document.lines.get(("apiVersion",)),
        )
    looks_alike = difflib.get_close_matches(kind.lower(), [_KIND.lower()], cutoff=0.85)
    if kind not in {_KIND, "PDPool"} and (ours or looks_alike):
        return Problem(
            path=("kind",),
            value=kind,
            message=f"is not a kind of {defaults.API_GROUP}; did you mean {_KIND}?",
            line=document.lines.get(("kind",)),
        )
    return kind


def _not_one(clusters: list[Document], skipped: list[str]) -> Problem:
    if clusters:
        names = ", ".join(_name_of(document) for document in clusters)
        return Problem(
            message=f"holds {len(clusters)} resources of kind {_KIND} ({names}); keep one per file",
            line=clusters[1].line,
        )
    if skipped:
        return Problem(
            message=f"holds no {_KIND}, only {', '.join(skipped)}; add one or name another file"
        )
    return Problem(message=f"is empty; write a {_KIND} into it, or start from examples/01-minimal")


def _name_of(document: Document) -> str:
    metadata = document.data.get("metadata") if isinstance(document.data, Mapping) else None
    name = metadata.get("name") if isinstance(metadata, Mapping) else None
    return str(name) if name is not None else "no name"


def _validated(document: Document, source: str) -> PDCluster:
    try:
        # Through JSON, which is what the API server sees: keys are strings, no dates, no NaN.
        as_json = json.dumps(document.data, allow_nan=False)
    except (TypeError, ValueError) as error:
        problem = Problem(message=f"holds a value that JSON cannot: {error}", line=document.line)
        raise ResourceError(source, (problem,)) from error
    try:
        return PDCluster.model_validate_json(as_json, by_alias=True, by_name=False)
    except ValidationError as error:
        problems = _in_order(problems_of(error, document.data), document)
        raise ResourceError(source, problems) from error


def _in_order(problems: tuple[Problem, ...], document: Document) -> tuple[Problem, ...]:
    """Place every problem, and sort them by their lines in the file."""
    placed = [_placed(problem, document) for problem in problems]
    return tuple(sorted(placed, key=lambda problem: problem.line or document.line or 0))


def _placed(problem: Problem, document: Document) -> Problem:
    """Add the line of the field, or of the nearest node above it that is in the file."""
    path = problem.path
    while path and path not in document.lines:
        path = path[:-1]
    return Problem(
        path=problem.path,
        value=problem.value,
        message=problem.message,
        line=document.lines.get(path, document.line),
    )
