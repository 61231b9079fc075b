"""How tasks and answers are written, through Ray and on a link of the driver's own machine."""

from __future__ import annotations

import struct

INLINE_BYTES = 64_000
"""Vectors up to this size travel inside the message: below what Ray sends inside a call."""

TASKS_KEPT = 256
"""How many different tasks either end keeps as they are sent: a mode may make a new one for each update."""

REQUEST = struct.Struct("qqqqdqqq")
"""Through Ray. Worker, ticket, step, length of the pickled task, the factor by which the host is slower, the
ticket of the task that has left the state, or -1; version of the weights, how they come."""
REPLY = struct.Struct("dd")
"""Through Ray. Loss, seconds of computing."""

TASK, STOP, ASK, STEP = range(4)
"""Kinds of messages on a link to a process. ASK wants a reply once all tasks before it are done. STEP has it
take part in an all-reduce."""
KIND = struct.Struct("q")
STEPPING = struct.Struct("qq")
"""Kind, version of the weights; then, pickled, what else `Reducing.step` is given: mostly the same bytes."""
ORDER = struct.Struct("qqqqqdqqqqqqqqqq")
"""Kind, worker, ticket, step, length of the pickled task, the factor by which the host is slower, version of
the weights, how they come, the ticket of the task that has left the state, or -1; then where blocks begin, or
-1: task, weights, bytes of the weights, value, bytes of the value, state, new state. A task and weights
without a block follow, in this order.
"""
ALONE, WHOLE = -1, -2
"""How weights come: for this task alone, or whole and to be held, as the next ones are made of them; else so
many messages of --compress-down, of this version and those before it."""
KEPT = -2
"""In place of where a block begins: the process has these weights, or is to keep the value (all-reduce)."""
STOPPING = struct.Struct("qqq")
"""Kind, worker, ticket: no task of the worker up to this ticket need go on."""

DONE, STOPPED, REPLIED, FAILED, WRONG, STEPPED, BROKEN = range(7)
"""Kinds of answers. DONE: the value follows, or lies in its block. FAILED: an error's text in UTF-8 follows.
WRONG: the same, of an error in a workload, for its author. STEPPED: float64 distances follow. BROKEN:
the group is, and nothing has changed; why follows."""
ANSWER = struct.Struct("qqdd")
"""Kind, ticket, loss, seconds of computing."""
