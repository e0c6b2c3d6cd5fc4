from mqlake.store.ha.flow_monitor import FlowMonitor


def test_it_counts_by_the_second_and_forgets_a_pause() -> None:
    flow = FlowMonitor(100)
    flow.add(60, 1.0)
    flow.add(10, 1.9)
    assert flow.allowance(1.95) == 30
    assert flow.transferred_byte_in_second(2.0) == 70
    assert flow.allowance(2.0) == 100
    assert flow.transferred_byte_in_second(4.0) == 0


def test_without_a_limit_everything_may_go() -> None:
    flow = FlowMonitor()
    flow.add(1 << 40, 1.0)
    assert flow.allowance(1.0) is None
