"""What is set up before anything else is imported."""

import os
import subprocess
import sys

import pytest

from evergraph.program import SPINS, brief_spins

DECISIONS = ("OMP_WAIT_POLICY", SPINS)


def test_waiting_threads_spin_briefly_unless_someone_has_decided(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in DECISIONS:
        monkeypatch.delenv(name, raising=False)
    with brief_spins():
        assert os.environ[SPINS] == "1000"
    assert SPINS not in os.environ  # nothing is left for other programs
    for name in DECISIONS:
        with monkeypatch.context() as decided:
            decided.setenv(name, "active")
            with brief_spins():
                assert {each: os.environ.get(each) for each in DECISIONS} == {
                    **dict.fromkeys(DECISIONS),
                    name: "active",
                }


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere torch comes with another OpenMP library")
def test_the_library_of_torch_is_told() -> None:
    environment = {key: value for key, value in os.environ.items() if key not in DECISIONS}
    command = [sys.executable, "-c", "import evergraph.program"]
    told = subprocess.run(command, env={**environment, "OMP_DISPLAY_ENV": "verbose"}, capture_output=True, text=True)
    if "OPENMP DISPLAY ENVIRONMENT" not in told.stderr:
        pytest.skip("torch was built with another OpenMP library")
    assert f"{SPINS} = '1000'" in told.stderr
