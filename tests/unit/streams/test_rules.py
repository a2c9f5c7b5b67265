"""Where each rule of the stream plane is shown: R1 to R100, the invariants I1 to I9, the public reports.

``RULES`` names tests by ``<path under tests>::<name>``, or says why there is nothing to show.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[2]

_READY = "unit/worker/test_readiness.py::"
_WORKER = "unit/worker/test_worker.py::"
_CONFIGURED = "unit/worker/test_configuration.py::"
_ATTEMPTS = "cluster/streams/test_attempts.py::"
_ROUTING = "cluster/streams/test_routing.py::"
_DECLINES = "cluster/streams/test_declines.py::"
_LIMITS = "cluster/streams/test_limits.py::"
_RPCS = "cluster/streams/test_rpcs.py::"
_BACKLOG = "cluster/streams/test_backlog.py::"
_LIBRARY = "e2e/streams_library/test_library.py::"
_DEATHS = "e2e/streams_library/test_deaths.py::"
_KEEPING = "cluster/upkeep/test_keeping.py::"
_STREAMS = "e2e/streams/test_streams.py::"
_IDLE = "e2e/streams/test_idle_streams.py::"
_RECORDED = "chaos/test_streams_recorded.py::test_i1_to_i9_hold_in_a_short_run"
_SETTINGS = "unit/test_settings.py::"
_CHAOS = "chaos/"
_STOPS = "cluster/flows/test_stops.py::"

RULES: dict[str, str | tuple[str, ...]] = {
    "R1": _READY + "test_r1_each_required_kind_needs_one_registered_stream",
    "R2": _WORKER + "test_r2_busy_slots_count",
    "R3": (
        _READY + "test_r3_all_waiters_get_the_same_outcome",
        _WORKER + "test_r3_waiting_before_the_start",
    ),
    "R4": _READY + "test_r4_a_permanent_rejection_of_a_kind_without_stream_fails_the_wait",
    "R5": _READY + "test_r5_beside_a_registered_stream_it_is_only_recorded",
    "R6": _READY + "test_r6_startup_errors_reach_the_waiters",
    "R7": _READY + "test_r7_a_deadline_ends_the_wait",
    "R8": (
        _READY + "test_r8_a_stop_before_readiness_is_an_error",
        _WORKER + "test_r8_stopped_before_it_was_ready",
    ),
    "R9": _READY + "test_r9_success_is_latched",
    "R10": (
        _READY + "test_r10_one_entry_per_required_kind",
        _WORKER + "test_r10_r12_probe_answers_200_or_503",
    ),
    "R11": (
        _READY + "test_r11_r12_r13_unready_only_without_stream_and_with_an_error",
        _DEATHS + "test_r11_r49_a_worker_of_a_killed_node_goes_to_another",
    ),
    "R12": _READY + "test_r11_r12_r13_unready_only_without_stream_and_with_an_error",
    "R13": _READY + "test_r11_r12_r13_unready_only_without_stream_and_with_an_error",
    "R14": _READY + "test_r14_a_stop_leaves_it_ready",
    "R15": _WORKER + "test_r4_r15_a_permanent_rejection_fails_the_wait_and_the_worker_goes_on_trying",
    "R16": _READY + "test_r16_only_a_rejection_that_leaves_nothing_counts",
    "R17": _WORKER + "test_r16_r17_a_worker_that_shall_stop_on_it_stops_also_later",
    "R18": _WORKER + "test_r18_as_many_slots_as_tasks_16_to_a_connection_all_in_one_message",
    "R19": (
        _CONFIGURED + "test_r19_r72_construction_errors",
        _CONFIGURED + "test_r19_a_worker_id_differs_after_each_start",
    ),
    "R20": _LIMITS + "test_r20_r25_streams_of_a_worker_on_a_node",
    "R21": _LIMITS + "test_r21_streams_of_a_node",
    "R22": _LIMITS + "test_r22_r23_r24_lengths_count_characters",
    "R23": _LIMITS + "test_r22_r23_r24_lengths_count_characters",
    "R24": _LIMITS + "test_r22_r23_r24_lengths_count_characters",
    "R25": _WORKER + "test_r25_r26_a_lower_cap_at_the_start_fails_it_and_returns_the_task",
    "R26": _LIMITS + "test_r26_a_worker_that_cannot_start_returns_what_it_was_sent",
    "R27": _WORKER + "test_r27_a_lower_cap_later_is_a_warning",
    "R28": _ROUTING + "test_r28_the_worker_that_served_the_flow_gets_its_next_step",
    "R29": (
        _ROUTING + "test_r29_a_busy_worker_is_waited_for_so_long_and_no_longer",
        _ROUTING + "test_r29_a_worker_that_becomes_free_in_time_gets_the_step",
    ),
    "R30": (
        _ROUTING + "test_r30_steps_do_not_wait_for_a_worker_that_goes_meanwhile",
        _ROUTING + "test_r30_long_after_a_worker_has_gone",
    ),
    "R31": _BACKLOG + "test_steps_that_wait_for_a_worker_are_no_backlog_but_count",
    "R32": _ROUTING + "test_r32_older_runnable_work_goes_first_and_nobody_is_waited_for",
    "R33": _ROUTING + "test_r33_work_that_nobody_can_run_is_no_backlog",
    "R34": (_ROUTING + "test_many_workers_and_flows_lose_and_double_nothing", _RECORDED),
    "R35": (
        _ROUTING + "test_r35_queued_steps_of_stopped_flows_are_never_handed_out",
        _STOPS + "test_queued_steps_of_a_stopped_flow_are_never_handed_out",
    ),
    "R36": _ROUTING + "test_r36_steps_come_in_the_order_they_became_ready",
    "R37": (
        _ROUTING + "test_r37_a_type_nobody_supports_blocks_nobody",
        _ROUTING + "test_r37_five_thousand_steps_nobody_supports_hold_up_nothing",
    ),
    "R38": _ROUTING + "test_r38_time_in_the_queue_is_no_time_of_the_method",
    "R39": _ROUTING + "test_r39_namespaces_do_not_see_each_other",
    "R40": (
        _DECLINES + "test_r40_r41_a_declined_step_goes_to_another_worker_unconsumed",
        _DECLINES + "test_r40_also_when_the_flow_was_sticky_to_it",
        _ROUTING + "test_nobody_waits_for_a_busy_worker_that_declined_the_step",
        _WORKER + "test_r40_unknown_names_are_declined_before_anything_runs",
    ),
    "R41": _LIBRARY + "test_r40_r41_what_a_worker_lacks_goes_to_another_as_the_same_attempt",
    "R42": _DECLINES + "test_r42_what_was_declined_is_offered_no_more_on_any_node",
    "R43": _DECLINES + "test_r43_r45_an_evicted_entry_is_offered_again_after_a_completed_step",
    "R44": _DECLINES + "test_r44_forgotten_with_the_last_stream_only",
    "R45": _DECLINES + "test_r43_r45_an_evicted_entry_is_offered_again_after_a_completed_step",
    "R46": _DECLINES + "test_r46_an_old_process_s_entry_excludes_the_new_one_of_the_same_id",
    "R47": (
        _DECLINES + "test_r47_a_step_nobody_supports_waits_in_its_queue",
        _RPCS + "test_r47_declined_by_one_and_served_by_another",
        _RPCS + "test_r47_known_to_nobody_is_a_named_error_at_once",
    ),
    "R48": _RECORDED,
    "R49": (
        _ATTEMPTS + "test_r49_losing_the_connection_fails_the_attempt",
        _DEATHS + "test_r49_a_killed_worker_fails_its_attempt",
    ),
    "R50": _ATTEMPTS + "test_r50_no_hidden_retry",
    "R51": _ATTEMPTS + "test_r51_late_output_is_refused_and_changes_nothing",
    "R52": "every start is durable before its task is sent: there is no mode in which it were not",
    "R53": _ATTEMPTS + "test_r53_half_closing_without_output_returns_the_attempt",
    "R54": _ATTEMPTS + "test_r54_resetting_loses_the_attempt",
    "R55": _DECLINES + "test_r40_r41_a_declined_step_goes_to_another_worker_unconsumed",
    "R56": _LIMITS + "test_r26_a_worker_that_cannot_start_returns_what_it_was_sent",
    "R57": _ATTEMPTS + "test_r57_capacity_declines_return_and_are_counted",
    "R58": (_RECORDED, "chaos/test_streams_checker.py::test_a_broken_promise_is_seen"),
    "R59": "unit/worker/test_definitions.py::test_what_a_step_sees",
    "R60": _RPCS + "test_r61_nobody_takes_it",
    "R61": _RPCS + "test_r61_nobody_takes_it",
    "R62": _RPCS + "test_r62_never_past_the_deadline",
    "R63": _RPCS + "test_r63_a_freed_slot_serves_rpcs_before_steps",
    "R64": (
        _RPCS + "test_r64_r65_reserved_slots_serve_rpcs_and_nothing_else",
        _LIBRARY + "test_r64_a_reserved_slot_answers_while_all_others_are_busy",
    ),
    "R65": _RPCS + "test_r64_r65_reserved_slots_serve_rpcs_and_nothing_else",
    "R66": _ROUTING + "test_r66_r74_a_step_waits_for_a_free_slot_and_consumes_no_attempt",
    "R67": _CONFIGURED + "test_r67_the_cpu_count_is_the_default",
    "R68": _WORKER + "test_r68_a_lane_takes_no_task_before_its_old_handler_has_returned",
    "R69": _CONFIGURED + "test_r69_r70_r73_slots",
    "R70": _CONFIGURED + "test_r69_r70_r73_slots",
    "R71": (
        _CONFIGURED + "test_r71_one_slot_that_nobody_asked_for_is_worth_a_warning",
        _WORKER + "test_r71_one_warning_at_the_start",
    ),
    "R72": _CONFIGURED + "test_r19_r72_construction_errors",
    "R73": _CONFIGURED + "test_r69_r70_r73_slots",
    "R74": _ROUTING + "test_r66_r74_a_step_waits_for_a_free_slot_and_consumes_no_attempt",
    "R75": "the library never had counters of its own for declined reserves, so none has to stay",
    "R76": (
        _WORKER + "test_r76_idle_slots_half_close_at_once_and_busy_ones_finish",
        _LIBRARY + "test_r76_r81_a_stop_lets_the_attempt_finish",
    ),
    "R77": (
        _ATTEMPTS + "test_r77_a_task_that_crosses_a_half_close_is_never_lost",
        _WORKER + "test_r77_a_task_that_crosses_the_half_close_is_not_run",
    ),
    "R78": (
        _ATTEMPTS + "test_r78_a_leaving_node_lets_tasks_finish",
        _WORKER + "test_r78_a_directed_reconnect_lets_the_running_task_finish",
        _STREAMS + "test_r78_a_node_that_stops_lets_its_tasks_finish",
    ),
    "R79": (
        _WORKER + "test_r79_the_drain_deadline_resets_cancels_and_waits",
        _LIBRARY + "test_r79_the_drain_deadline_loses_the_attempt",
    ),
    "R80": _WORKER + "test_r80_an_unconfirmed_output_gets_a_grace",
    "R81": _ATTEMPTS + "test_r81_an_output_counts_though_its_worker_is_gone",
    "R82": (
        _LIMITS + "test_r82_pongs_of_a_busy_worker_are_life",
        _WORKER + "test_pings_are_answered_and_r82_pongs_come_while_a_task_runs",
        _IDLE + "test_r82_r83_streams_outlive_the_proxys_patience",
    ),
    "R83": (
        _LIMITS + "test_r83_idle_connections_are_pinged_and_live",
        _IDLE + "test_r82_r83_streams_outlive_the_proxys_patience",
    ),
    "R84": _DEATHS + "test_r84_a_worker_listens_nowhere",
    "R85": _ROUTING + "test_r85_without_workers_steps_wait_and_timeouts_of_flows_count",
    "R86": _BACKLOG + "test_entries_age_and_reasons",
    "R87": _BACKLOG + "test_entries_age_and_reasons",
    "R88": _BACKLOG + "test_r88_r89_a_partition_counts_once_it_was_looked_at_whole_its_age_at_once",
    "R89": _BACKLOG + "test_r88_r89_a_partition_counts_once_it_was_looked_at_whole_its_age_at_once",
    "R90": _KEEPING + "test_removed_heads_are_restored_and_told",
    "R91": _BACKLOG + "test_metrics_have_the_documented_names",
    "R92": (
        "cluster/queues/test_claim_script.py::test_dead_entries_are_passed_in_bounded_steps",
        _STOPS + "test_queued_steps_of_a_stopped_flow_are_never_handed_out",
    ),
    "R93": _BACKLOG + "test_metrics_have_the_documented_names",
    "R94": _BACKLOG + "test_r94_a_partition_that_is_lost_is_counted_no_more",
    "R95": _SETTINGS + "test_settings_that_contradict_each_other_are_refused",
    "R96": _SETTINGS + "test_r95_to_r98_matching_settings_that_mean_nothing_are_refused",
    "R97": (
        _SETTINGS + "test_r95_to_r98_matching_settings_that_mean_nothing_are_refused",
        _SETTINGS + "test_r97_no_resync_interval_switches_it_off",
    ),
    "R98": _SETTINGS + "test_r95_to_r98_matching_settings_that_mean_nothing_are_refused",
    "R99": (
        "e2e/streams/test_doors.py::test_r99_the_highest_common_version_is_spoken",
        _WORKER + "test_r6_r99_no_common_version_ends_the_start",
        "unit/worker/test_client.py::test_r99_a_server_without_flows_is_told_apart",
    ),
    "R100": (
        _WORKER + "test_r100_a_rotated_token_is_read_for_each_connection",
        _DEATHS + "test_r25_r100_limits_and_credentials",
        "e2e/streams/test_doors.py::test_refusals_are_http_responses",
    ),
}

AMBIGUITIES = {
    "A1": RULES["R45"],
    "A2": _RPCS + "test_r47_known_to_nobody_is_a_named_error_at_once",
    "A3": _ATTEMPTS + "test_a3_half_closing_after_a_heartbeat_loses_the_attempt",
    "A4": _LIMITS + "test_r20_r25_streams_of_a_worker_on_a_node",
    "A5": _RPCS + "test_r64_r65_reserved_slots_serve_rpcs_and_nothing_else",
    "A6": _ROUTING + "test_r32_older_runnable_work_goes_first_and_nobody_is_waited_for",
    "A7": _BACKLOG + "test_a_returned_step_keeps_its_age",
}
"""What the rules leave open, answered in docs/protocol.md 11."""

INVARIANTS = {f"I{number}": _RECORDED for number in range(1, 10)}

REPORTS: dict[str, str | tuple[str, ...]] = {
    "temporalio/temporal#2363": _ROUTING + "test_r30_long_after_a_worker_has_gone",
    "temporalio/temporal#7566": _ROUTING + "test_r30_long_after_a_worker_has_gone",
    "temporalio/temporal#1058": _RECORDED,
    "temporalio/temporal#459": (
        _STREAMS + "test_attempts_of_a_killed_node_fail_into_the_retry_policy",
        _RECORDED,
    ),
    "temporalio/temporal#881": _ROUTING + "test_many_workers_and_flows_lose_and_double_nothing",
    "temporalio/temporal#8925": _ROUTING + "test_r32_older_runnable_work_goes_first_and_nobody_is_waited_for",
    "temporalio/documentation#4392": (
        _BACKLOG + "test_entries_age_and_reasons",
        _STOPS + "test_queued_steps_of_a_stopped_flow_are_never_handed_out",
    ),
    "cadence-workflow/cadence#1500": "chaos/test_frozen_node.py::test_a_frozen_node_is_replaced_and_rejoins",
    "cadence-workflow/cadence#263": _KEEPING + "test_removed_heads_are_restored_and_told",
    "temporalio/sdk-go#1197": _ATTEMPTS + "test_r77_a_task_that_crosses_a_half_close_is_never_lost",
    "temporalio/sdk-go#465": _LIBRARY
    + "test_r40_r41_what_a_worker_lacks_goes_to_another_as_the_same_attempt",
    "celery/celery#1861": (
        _DECLINES + "test_r47_a_step_nobody_supports_waits_in_its_queue",
        _BACKLOG + "test_entries_age_and_reasons",
    ),
    "hatchet-dev/hatchet#4254": (
        _LIMITS + "test_two_missed_pings_lose_the_connection",
        _WORKER + "test_a_silent_node_is_given_up",
    ),
    "inngest/inngest#3822": _LIBRARY + "test_r76_r81_a_stop_lets_the_attempt_finish",
    "envoyproxy/envoy#33289": (
        _IDLE + "test_r82_r83_streams_outlive_the_proxys_patience",
        _IDLE + "test_without_pings_the_proxy_does_cut_them",
    ),
    "celery/celery#5935": _LIMITS + "test_r82_pongs_of_a_busy_worker_are_life",
    "taskiq-python/taskiq-redis#131": _CHAOS
    + "test_killed_nodes.py::test_all_workflows_complete_while_nodes_die",
    "sidekiq/sidekiq#4633": _ATTEMPTS + "test_d10_a_poison_step_is_bounded_and_harms_no_other",
    "redis/redis#7059": (
        "cluster/streams/test_servers.py::test_entries_of_finished_steps_take_no_memory",
        "cluster/streams/test_servers.py::test_nothing_stays_behind",
    ),
    "redis/redis#13957": _BACKLOG + "test_entries_age_and_reasons",
    "redis/redis#6199": _KEEPING + "test_dead_pending_entries_go",
    "redis/redis#14656": _KEEPING + "test_idle_empty_queues_go_and_others_stay",
    "taskiq-python/taskiq-redis#130": "cluster/streams/test_servers.py::test_on_a_redis_cluster",
    "redis/redis#6062": "cluster/store/test_topologies.py::test_sentinel_fail_over",
    "temporalio/temporal#11402": _WORKER + "test_a_slot_that_was_refused_is_asked_for_again",
    "cadence-workflow/cadence#152": "cluster/queues/test_matcher.py::test_no_wake_is_lost_under_hammering",
    "taskiq-python/taskiq-redis#101": (
        _IDLE + "test_r82_r83_ten_minutes_of_silence_through_a_proxy_that_waits_45_seconds",
        _LIMITS + "test_r82_pongs_of_a_busy_worker_are_life",
    ),
    "hibiken/asynq#1015": _DEATHS + "test_r49_a_killed_worker_fails_its_attempt",
    "Bogdanp/dramatiq#527": "chaos/test_redis_restart.py::test_the_backlog_is_served_within_five_seconds",
    "riverqueue/river#1105": _ATTEMPTS + "test_e1_what_a_buried_node_had_handed_out_is_lost",
    "inngest/inngest#3725": _RPCS + "test_lost_words_of_who_serves_what_lose_no_rpc",
    "hatchet-dev/hatchet#2432": _LIMITS + "test_two_missed_pings_lose_the_connection",
}
"""Public reports about comparable systems, and the test that it does not happen here."""

SHOWN = {**RULES, **AMBIGUITIES, **INVARIANTS, **REPORTS}


@cache
def _tests_of(path: str) -> frozenset[str]:
    file = TESTS / path
    if not file.exists():
        return frozenset()
    return frozenset(re.findall(r"^(?:async )?def (test_\w+)", file.read_text(), re.MULTILINE))


@pytest.mark.parametrize("name", SHOWN)
def test_every_rule_is_shown_by_a_test_that_exists(name: str) -> None:
    shown = SHOWN[name]
    named = (shown,) if isinstance(shown, str) else shown
    for one in named:
        path, separator, test = one.partition("::")
        if separator:
            assert test in _tests_of(path), f"{name}: there is no {one}"
        else:
            assert len(one.split()) > 5, f"{name}: a reason is a sentence"


def test_the_rules_are_all_there() -> None:
    assert list(RULES) == [f"R{number}" for number in range(1, 101)]
    assert list(AMBIGUITIES) == [f"A{number}" for number in range(1, 8)]


def test_the_page_answers_what_the_rules_leave_open() -> None:
    page = (TESTS.parent / "docs/protocol.md").read_text()
    rows = re.findall(r"^\| (A\d) \| .+ \| .+ \|$", page, re.MULTILINE)
    assert rows == list(AMBIGUITIES)


def test_a_test_that_names_a_rule_names_one_that_exists() -> None:
    """``test_r101_...`` would be a slip of the pen."""
    for path in TESTS.rglob("streams*/test_*.py"):
        for test in re.findall(r"^(?:async )?def (test_\w+)", path.read_text(), re.MULTILINE):
            for number in re.findall(r"_r(\d+)(?=_)", test):
                assert f"R{number}" in RULES, f"{path.name}::{test}"
