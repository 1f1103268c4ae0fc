"""What every engine must do, written once and run over each implementation.

Subclass the classes in a test module that offers the fixtures

    generator: engine.base.Generator    verifier: engine.base.Verifier    problem: types.Problem

and runs its tests and fixtures on one event loop. The problem's paths should hold a step of at
most STEP_TOKENS tokens and end within PATH_TOKENS (see `engine_rig`). Nothing here knows the
implementation; times are waited for by polling, on whatever clock the loop has. A verifier that
keeps scores offers `score_whole`, which keeps nothing: exactness is measured against it.
"""

from tests.contracts.generator_contract import GeneratorContract
from tests.contracts.offload_contract import OffloadContract
from tests.contracts.verifier_contract import VerifierContract

__all__ = ["GeneratorContract", "OffloadContract", "VerifierContract"]
