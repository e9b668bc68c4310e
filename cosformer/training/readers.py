"""Processes that read data for a run: they end when it ends them, or is gone, and not by what is meant for the run."""

import os
import signal
import threading


def read_until_ended(worker: int) -> None:
    """Ctrl-C reaches every process of a terminal, SIGTERM every one of a job; the run needs its readers for its step.

    SIGTERM cannot be ignored as Ctrl-C is: torch ends readers with it, and waits for them. So it is heeded where the
    run itself sent it. A system that does not tell who sent a signal (macOS) has its default.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if hasattr(signal, "sigwaitinfo"):
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})  # of the thread too, which begins after it
        threading.Thread(target=_await_term, args=(os.getppid(),), daemon=True).start()


def _await_term(run: int) -> None:
    while signal.sigwaitinfo({signal.SIGTERM}).si_pid != run and os.getppid() == run:
        pass
    os._exit(0)  # torch takes any other code for a failure
