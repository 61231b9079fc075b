"""Laws that every strategy must keep (`check`).

from dsgd.conformance import checks_of                # in a test file, as the scaffold writes it

@pytest.mark.parametrize("check", checks_of("train_mine.py"), ids=str)
def test_a_law_of_all_strategies(check):
    check()
"""

from dsgd.conformance.law_checks import LawCheck, checks_of
from dsgd.conformance.strategy_on_trial import LawBroken

__all__ = ["LawBroken", "LawCheck", "checks_of"]
