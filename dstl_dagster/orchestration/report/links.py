"""Links in Markdown: to pages of Dagster's own web server, and to the console of a bucket. Pure.

At 1,280 pixels Dagster's page gives a value 25 characters, and cuts the whole column where a word is longer.
So a link has a short name, a file is named within its folder, and a long name gets places to break.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile
from urllib.parse import quote

from dstl_dagster.checkpoint import Checkpoint, FileReport
from dstl_dagster.format import breakable, counted, names_in_words, readable_bytes
from dstl_dagster.orchestration.keys import JobAssets
from dstl_dagster.orchestration.owners import run_of_owner

NEW_LINE = "  \n"
_CONSOLE = "https://console.cloud.google.com/storage/browser"
_LINES = 50
_NAMED = 10


def checkpoint_link(assets: JobAssets, checkpoint_id: int) -> str:
    """To the page of a checkpoint."""
    name = assets.partition_key(checkpoint_id)
    return f"[{name}](/assets/{'/'.join(assets.checkpoints_key.path)}?view=partitions&partition={name})"


def owner_link(owner: str) -> str:
    """The owner: a run as a link to its page."""
    run_id = run_of_owner(owner)
    return f"`{breakable(owner)}`" if run_id is None else f"[{names_in_words(owner)}](/runs/{run_id})"


def launchpad_link(name: str, job: str, partition: str, config: str = "") -> str:
    """To the launchpad of a Dagster job, for a partition, with its config filled in.

    Dagster finds the job's code location. `config`: YAML, with a plus for each space.
    """
    tag = f"tags[0][key]=dagster/partition&tags[0][value]={quote(partition)}"
    return f"[{name}](/guess/{job}/playground/setup?{tag}{config and f'&config={config}'})"


def object_link(name: str, uri: str) -> str:
    """To an object, or a folder, of a bucket; of any other store just the name."""
    name = breakable(name)
    if not uri.startswith("gs://"):
        return f"`{name}`"
    # The console shows a folder and an object on different pages.
    page = _CONSOLE if uri.endswith("/") else f"{_CONSOLE}/_details"
    return f"[{name}]({page}/{quote(uri.removeprefix('gs://'))})"


def folder_uri(store_uri: str, files: tuple[FileReport, ...]) -> str:
    """The deepest folder that holds all files, with a trailing slash."""
    return f"{_bucket_uri(store_uri, files)}/{_folder(files)}"


def file_lines(checkpoint: Checkpoint, store_uri: str) -> str:
    """The folder of a checkpoint's files, and each file within: its rows, its size, whether it is blocked."""
    files, blocked = checkpoint.manifest.files, {file.name for file in checkpoint.blocked}
    bucket, folder = _bucket_uri(store_uri, files), _folder(files)
    lines = [f"in {object_link(folder, f'{bucket}/{folder}')}:"] if folder else []
    for file in files:
        name = object_link(file.object_name.removeprefix(folder), f"{bucket}/{file.object_name}")
        rows = None if file.rows is None else counted(file.rows, "row")
        state = "**blocked**" if file.object_name in blocked else None
        lines.append(", ".join(filter(None, [name, rows, readable_bytes(file.size), state])))
    return shown_lines(lines)


def blocked_lines(checkpoint: Checkpoint) -> str:
    """Each blocked file, and why it is."""
    return shown_lines([f"`{breakable(file.name)}`: {breakable(file.reason)}" for file in checkpoint.blocked])


def how_to_resolve(checkpoint_id: int, name: str) -> str:
    """The command for a blocked file."""
    return f"`dstl checkpoints resolve {checkpoint_id} {name}` with `--keep` or `--replace`"


def shown_lines(lines: Sequence[str]) -> str:
    """The first ones, and how many more there are."""
    more = [f"and {len(lines) - _LINES} more"] if len(lines) > _LINES else []
    return NEW_LINE.join([*lines[:_LINES], *more])


def first_names(names: Sequence[str]) -> str:
    """The same of names within a sentence."""
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more


def _bucket_uri(store_uri: str, files: tuple[FileReport, ...]) -> str:
    """What the names of files are relative to: their bucket, which a job need not have for itself."""
    scheme = store_uri.partition("://")[0]
    if not files or scheme == "file":
        return store_uri.rstrip("/")
    return f"{scheme}://{files[0].recoverable.final_blob_identifier.bucket_name}"


def _folder(files: tuple[FileReport, ...]) -> str:
    """Within the bucket; empty for the bucket itself."""
    folders = [file.object_name.split("/")[:-1] for file in files]
    shared = takewhile(lambda parts: len(set(parts)) == 1, zip(*folders, strict=False))
    return "".join(f"{parts[0]}/" for parts in shared)
