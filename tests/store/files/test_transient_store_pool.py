from __future__ import annotations

import threading

from mqlake.store.files.transient_store_pool import TransientStorePool


def test_lends_as_many_buffers_as_it_has() -> None:
    pool = TransientStorePool(2, 4096)
    first, second = pool.borrow(), pool.borrow()
    assert first is not None and second is not None
    assert len(first) == len(second) == 4096
    assert pool.borrow() is None
    assert pool.available_buffer_nums == 0


def test_takes_them_back_as_they_are() -> None:
    pool = TransientStorePool(1, 4096)
    buffer = pool.borrow()
    assert buffer is not None
    buffer[:5] = b"bytes"
    pool.give_back(buffer)
    assert pool.available_buffer_nums == 1
    again = pool.borrow()
    assert again is not None
    assert bytes(again[:5]) == b"bytes"


def test_a_buffer_has_one_user_at_a_time() -> None:
    pool = TransientStorePool(3, 64)
    in_use: set[int] = set()
    guard = threading.Lock()

    def work() -> None:
        for _ in range(2000):
            buffer = pool.borrow()
            if buffer is None:
                continue
            with guard:
                assert id(buffer) not in in_use
                in_use.add(id(buffer))
            with guard:
                in_use.remove(id(buffer))
            pool.give_back(buffer)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert pool.available_buffer_nums == 3
