"""Whatever the description allows, and some of what it does not: the leader answers as described and never breaks."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import GenerationMode, checks

from paceline.service.api.guard import Limits
from support.leading import Served, served_in

EXAMPLES = 8  # of each route
CHECKS = [
    checks.not_a_server_error,
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_schema_conformance,
]

_examples = settings(
    max_examples=EXAMPLES,
    derandomize=True,
    deadline=None,
    database=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)

pytestmark = pytest.mark.filterwarnings("ignore")  # of the library, about its own parts


@pytest.fixture(scope="module")
def patient(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A leader that may be asked as fast as one can."""
    with served_in(tmp_path_factory.mktemp("patient"), limits=Limits(rate=1e6, burst=10**6)) as made:
        made.submit("job-1")
        yield made


@pytest.mark.parametrize("mode", list(GenerationMode))
def test_it_answers_as_described(patient: Served, mode: GenerationMode) -> None:
    let_in = {"Authorization": f"Bearer {patient.add_token('tester', 'admin')}"}
    description = schemathesis.openapi.from_url(f"{patient.url}/api/v1/openapi.json", headers=let_in)
    operations = [result.ok() for result in description.get_all_operations()]
    assert len(operations) > 15
    for operation in operations:
        if mode is GenerationMode.NEGATIVE and not (operation.body or operation.query or operation.path_parameters):
            continue  # there is nothing to get wrong

        @_examples
        @given(case=operation.as_strategy(generation_mode=mode))
        def answered(case: schemathesis.Case) -> None:
            case.call_and_validate(checks=CHECKS, headers=let_in, timeout=60)

        answered()
