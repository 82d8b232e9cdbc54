"""Shows that Python cannot end a thread that waits or computes outside of Python.

Run it with `python docs/limits/unending_thread.py`. It raises an exception in a thread from
outside, which is all that CPython offers: it arrives when the thread next runs Python code, and a
thread in the midst of a call, such as a read that never ends, does not.
"""

from __future__ import annotations

import ctypes
import threading


def main() -> None:
    """Tries to end a thread, and then wakes it."""
    has_begun, gate = threading.Event(), threading.Event()

    def work() -> None:
        try:
            has_begun.set()
            gate.wait()
        except SystemExit:
            print("the exception has arrived")

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    has_begun.wait()
    ident = ctypes.c_ulong(thread.ident or 0)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ident, ctypes.py_object(SystemExit))
    thread.join(timeout=3)
    print("ended after 3 s:", not thread.is_alive())
    gate.set()
    thread.join(timeout=3)
    print("ended when what it waited for came:", not thread.is_alive())


if __name__ == "__main__":
    main()
