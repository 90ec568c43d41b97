"""Attacks that no single peer of a simulation can stage, each with what is expected of it and the tests that show it.

They need many keys, all of a victim's neighbours, another peer's key, the network's own records, or a scorer that runs
its answer. What one peer can send is in ATTACKS.
"""

from dataclasses import dataclass

from shoal.defenses.attacks.base import Expected

_IDENTITY = "tests/unit/defenses/test_attacks_identity.py"
_WIRE = "tests/unit/defenses/test_attacks_wire.py"
_VERIFIER = "tests/integration/test_attacks_verifier.py"
_FENCE = "tests/integration/test_verifier_fence.py"
_ANSWERS = "tests/integration/test_verifier_answers.py"
_RECORDS = "tests/unit/protocol/test_protocol_records.py"


@dataclass(frozen=True, slots=True)
class Trial:
    """What is expected, and the tests ("file::function") that show it, first what stops it, then what it would do."""

    expected: Expected
    tests: tuple[str, ...]


LABORATORY: dict[str, Trial] = {
    "hundred-keys": Trial(
        Expected("admission", "a hundred keys of one operator take one operator's turn and weigh as one"),
        (
            f"{_IDENTITY}::test_a_hundred_keys_of_one_operator_weigh_as_one",
            f"{_IDENTITY}::test_without_operators_or_turns_they_have_nearly_all",
        ),
    ),
    "hundred-fresh-keys": Trial(
        Expected("partial", "in an open swarm newcomers share one operator's place; who waits with many keys has many"),
        (
            f"{_IDENTITY}::test_a_hundred_fresh_keys_of_an_open_swarm_share_one_newcomers_place_until_they_have_waited",
            f"{_IDENTITY}::test_without_operators_or_turns_they_have_nearly_all",
        ),
    ),
    "eclipse": Trial(
        Expected("partial", "malicious neighbours keep honest peers away, and pass nothing off as theirs"),
        (f"{_IDENTITY}::test_behind_malicious_neighbours_nothing_honest_and_nothing_forged_comes_in",),
    ),
    "key-squatting": Trial(
        Expected("header", "a record is signed by the key that it names, and by the network keys that it claims"),
        (
            f"{_IDENTITY}::test_nobody_passes_off_anothers_network_key_or_name_as_his_own",
            f"{_IDENTITY}::test_with_the_binding_not_checked_a_squatter_gets_the_victims_traffic",
            f"{_RECORDS}::test_derived_keys_are_bound_both_ways",
        ),
    ),
    "record-squatting": Trial(
        Expected(
            "header", "in the DHT a record lies under its owner's key, signed by it; nobody else's takes its place"
        ),
        (
            "tests/integration/test_libp2p_dht.py::test_nobody_stores_under_anothers_key",
            "tests/integration/test_libp2p_dht.py::test_what_is_stored_for_others_is_bounded",
            "tests/unit/protocol/test_libp2p_dht_records.py::test_only_keys_own_values",
        ),
    ),
    "key-theft": Trial(
        Expected("partial", "a stolen key is that key: one share, ended by a collision of numbers or by the founder"),
        (f"{_IDENTITY}::test_two_holders_of_one_key_are_one_key_until_it_is_revoked",),
    ),
    "wrong-own-clock": Trial(
        Expected("header", "a node whose clock is wrong by an hour takes nothing, blames nobody, and recovers"),
        (f"{_IDENTITY}::test_a_node_whose_own_clock_is_wrong_by_an_hour_takes_nothing_and_recovers",),
    ),
    "muted-neighbours": Trial(
        Expected("reputation", "what gossip's rule forwards costs its forwarder nothing at the gate"),
        (
            f"{_IDENTITY}::test_an_honest_neighbour_cannot_be_made_to_pass_on_what_it_is_blamed_for",
            f"{_IDENTITY}::test_with_signatures_not_judged_the_accused_is_muted",
        ),
    ),
    "sympy-tower": Trial(
        Expected("verifier", "CPU time and memory of an answer are limited by the kernel, kills are budgeted"),
        (
            f"{_VERIFIER}::test_towers_are_stopped_and_never_right",
            f"{_VERIFIER}::test_one_rollout_of_them_costs_two_kills",
            f"{_ANSWERS}::test_costly_answer_is_unscorable_and_the_reference_after_it_scores",
            f"{_VERIFIER}::test_without_a_limit_a_tower_does_not_end",
        ),
    ),
    "nested-formula": Trial(
        Expected("verifier", "answers are capped in length, and their depth costs time that is limited"),
        (f"{_VERIFIER}::test_nested_formulas_are_stopped_or_wrong",),
    ),
    "redos": Trial(
        Expected("verifier", "the patterns that read answers are linear"),
        (
            f"{_VERIFIER}::test_texts_that_make_patterns_backtrack_are_worthless_and_cheap",
            f"{_ANSWERS}::test_long_repetitive_answers_are_linear_enough",
        ),
    ),
    "partial-answer": Trial(
        Expected("verifier", "one answer is read from a completion and compared whole"),
        (
            f"{_VERIFIER}::test_no_completion_is_right_for_two_questions",
            f"{_VERIFIER}::test_nothing_and_half_of_an_answer_are_not_answers",
            "tests/unit/trainer/test_gym_tasks.py::test_holes_of_the_library_are_closed",
        ),
    ),
    "answer-as-code": Trial(
        Expected("verifier", "no scorer evaluates an answer"),
        (
            f"{_VERIFIER}::test_answers_that_are_programs_do_nothing_and_are_no_answers",
            "tests/unit/trainer/test_gym_tasks.py::test_no_answer_is_evaluated",
            f"{_VERIFIER}::test_the_librarys_own_scorer_runs_them",
        ),
    ),
    "exit": Trial(
        Expected("verifier", "an answer whose grading ends is unscorable, and the next child grades the next one"),
        (
            f"{_FENCE}::test_hostile_act_is_unscorable_and_the_next_answer_is_graded",
            f"{_FENCE}::test_the_shared_child_is_replaced_too",
            f"{_VERIFIER}::test_bombs_exits_signals_and_false_objects_are_unscorable",
        ),
    ),
    "false-equality": Trial(
        Expected("verifier", "answers stay texts, so none brings an __eq__; a score is a number in [0, 1]"),
        (
            f"{_VERIFIER}::test_bombs_exits_signals_and_false_objects_are_unscorable",
            f"{_VERIFIER}::test_the_librarys_own_scorer_runs_them",
        ),
    ),
    "file-access": Trial(
        Expected("verifier", "a child writes nothing and reads only where Python's modules are"),
        (
            f"{_FENCE}::test_nothing_was_written",
            f"{_VERIFIER}::test_what_the_audit_hook_does_not_see_the_kernel_refuses",
            f"{_VERIFIER}::test_without_the_kernels_part_of_the_fence_it_is_done",
        ),
    ),
    "network-access": Trial(
        Expected("verifier", "a child has no sockets"),
        (
            f"{_FENCE}::test_hostile_act_is_unscorable_and_the_next_answer_is_graded",
            f"{_VERIFIER}::test_what_the_audit_hook_does_not_see_the_kernel_refuses",
        ),
    ),
    "memory-bomb": Trial(
        Expected("verifier", "a child's memory is limited beyond what its libraries take"),
        (f"{_FENCE}::test_hostile_act_is_unscorable_and_the_next_answer_is_graded",),
    ),
    "fork-bomb": Trial(
        Expected("verifier", "a child starts no process"),
        (f"{_VERIFIER}::test_bombs_exits_signals_and_false_objects_are_unscorable",),
    ),
    "output-flood": Trial(
        Expected("verifier", "a child's output goes nowhere, and cannot block it"),
        (f"{_FENCE}::test_output_goes_nowhere",),
    ),
    "signals": Trial(
        Expected("verifier", "a child signals nobody else; stopped or killed by itself it is given up"),
        (
            f"{_VERIFIER}::test_bombs_exits_signals_and_false_objects_are_unscorable",
            f"{_VERIFIER}::test_an_answer_that_stops_itself_is_given_up",
            f"{_FENCE}::test_no_process_outlives_the_one_it_works_for",
        ),
    ),
    "poisoned-worker": Trial(
        Expected("verifier", "an answer cannot change how the next one is graded"),
        (f"{_FENCE}::test_one_answer_cannot_change_how_the_next_is_graded",),
    ),
    "foreign-tests": Trial(
        Expected("schema", "no wire has a place from which an answer or a test would be used"),
        (
            f"{_WIRE}::test_there_is_no_field_for_tests_or_answers",
            "tests/unit/node/test_bridge_wire.py::test_what_a_peer_says_of_answers_and_scorers_goes_no_further",
        ),
    ),
}
"""Name → what is expected, and where it is tried."""
