"""The processes of a cluster, against our own API server in the place of its control plane."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support import cluster_stories, lasting_stories
from support.cluster_lab import ClusterLab, stand_in

pytestmark = pytest.mark.real


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[ClusterLab]:
    with stand_in(tmp_path / "control-plane") as kubeconfig:
        lab = ClusterLab(tmp_path / "lab", kubeconfig)
        try:
            yield lab
        finally:
            lab.end_all()


def test_a_killed_leader_is_replaced_and_nothing_is_lost(lab: ClusterLab) -> None:
    cluster_stories.forced_change_of_leader(lab)


def test_a_leader_in_whose_place_another_is_stops_and_says_so(lab: ClusterLab) -> None:
    cluster_stories.stolen_leadership(lab)


def test_a_provisioner_in_a_process_of_its_own_keeps_its_pools(lab: ClusterLab) -> None:
    cluster_stories.pool_on_this_machine(lab)


def test_lasting_machines_grow_leave_by_name_and_reuse_disks(lab: ClusterLab) -> None:
    lasting_stories.lasting_machines(lab)


def test_lasting_pods_come_and_go_and_their_claims_stay(lab: ClusterLab) -> None:
    lasting_stories.lasting_pods_without_nodes(lab)


def test_pods_that_no_node_runs_hold_the_pool_and_are_explained(lab: ClusterLab) -> None:
    cluster_stories.pool_of_pods_without_nodes(lab)
