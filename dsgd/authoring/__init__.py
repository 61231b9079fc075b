"""For authors of strategies: a scaffold (`--new-strategy`), and the laws of all strategies (`--conformance`).

from dsgd.authoring import checks_of                # in a test file, as the scaffold writes it

@pytest.mark.parametrize("check", checks_of("train_mine.py"), ids=str)
def test_a_law_of_all_strategies(check):
    check()
"""

from dsgd.authoring.law_checks import LawCheck, checks_of
from dsgd.authoring.subject import LawBroken

__all__ = ["LawBroken", "LawCheck", "checks_of"]
