"""The list of mutations stays usable: each text occurs once, and each test exists."""

from tests.mutations.__main__ import problem, read


def test_each_mutation_can_be_applied():
    mutations = read("mutations")
    assert len(mutations) >= 40
    assert {name: reason for name, each in mutations.items() if (reason := problem(each))} == {}
    assert read("results").keys() <= mutations.keys()
