"""The plan of a commit: how many composes, how deep, in which order, under which names."""

from __future__ import annotations

import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dstl_dagster.recoverable import GSBlobIdentifier, GSCommitRecoverable, GSResumeRecoverable
from dstl_dagster.recoverable.compose_plan import Node, leaves, plan_compose, recoverable_hash, waves
from tests.profiles import examples


def recoverable_of(count: int, seed: int = 0) -> GSCommitRecoverable:
    ids = [uuid.UUID(int=(seed << 64) + number + 1) for number in range(count)]
    return GSCommitRecoverable(GSBlobIdentifier("b", "o"), ids)


def sizes(root: Node) -> list[int]:
    return [len(root.children), *(len(node.children) for wave in waves(root) for node in wave)]


@examples(80)
@given(st.integers(1, 3000), st.sampled_from([2, 3, 4, 32]))
def test_as_few_and_as_flat_as_can_be(count: int, width: int) -> None:
    """n components need ceil((n-1)/(width-1)) composes in ceil(log n) waves, each of 2 to width sources."""
    root = plan_compose(recoverable_of(count), max_sources=width)
    assert root is not None
    depth, reach = 1, width
    while reach < count:
        depth, reach = depth + 1, reach * width
    assert len(sizes(root)) == max(1, -(-(count - 1) // (width - 1)))
    assert 1 + len(waves(root)) == depth
    assert max(sizes(root)) <= width
    assert min(sizes(root)) >= (2 if count > 1 else 1)


@examples(40)
@given(st.integers(1, 2000))
def test_order_is_kept(count: int) -> None:
    """The leaves from left to right are the components in order, and each node is a range of them."""
    recoverable = recoverable_of(count)
    root = plan_compose(recoverable)
    assert root is not None
    assert [leaf.object_id for leaf in leaves(root)] == list(recoverable.component_object_ids)
    for wave in waves(root):
        for node in wave:
            assert [leaf.first for leaf in leaves(node)] == list(range(node.first, node.end))


def test_a_wave_needs_only_what_was_before() -> None:
    """Every child of a node is a component or in an earlier wave."""
    root = plan_compose(recoverable_of(1100))
    assert root is not None
    made = {leaf.object_id for leaf in leaves(root)}
    for wave in [*waves(root), [root]]:
        for node in wave:
            assert {child.object_id for child in node.children} <= made
        made.update(node.object_id for node in wave)


def test_names_follow_from_the_recoverable() -> None:
    """Equal recoverables give equal names, different ones different names; a resume state its commit's."""
    first, again, other = (plan_compose(recoverable_of(40, seed)) for seed in (1, 1, 2))
    assert first == again
    assert first is not None
    assert other is not None
    assert {node.object_id for node in waves(first)[0]}.isdisjoint(node.object_id for node in waves(other)[0])
    commit = recoverable_of(3)
    resume = GSResumeRecoverable(commit.final_blob_identifier, commit.component_object_ids, 9, True)
    assert recoverable_hash(resume) == recoverable_hash(commit)


@pytest.mark.parametrize("count", [2, 40, 2000])
def test_no_two_nodes_share_a_name(count: int) -> None:
    """Components and intermediates all have names of their own."""
    root = plan_compose(recoverable_of(count))
    assert root is not None
    ids = [leaf.object_id for leaf in leaves(root)]
    ids += [node.object_id for wave in [*waves(root), [root]] for node in wave]
    assert len(set(ids)) == len(ids)


def test_nothing_to_compose() -> None:
    """Without components there is no plan."""
    assert plan_compose(recoverable_of(0)) is None
