"""A job that would not be measured as it was asked for is refused."""

from __future__ import annotations

import pytest

from paceline.core.errors import InputError
from paceline.service.api.submissions import new_job
from paceline.service.jobs import MachineNeeds


def test_a_job_for_several_machines_is_refused_rather_than_measured_on_one() -> None:
    assert new_job("a", "gemm", {}, MachineNeeds()).needs.nodes == 1
    with pytest.raises(InputError, match=r"'nodes' = 2: .* one machine .* --hosts"):
        new_job("b", "gemm", {}, MachineNeeds(nodes=2))
