"""The asyncio front: one thread runs the engine, coroutines ask it, and no event loop waits for a step.

    async with AsyncFront(engine) as front:
        async for piece in front.stream("Once upon a time", max_new_tokens=64):
            print(piece.text, end="")

What is asked goes to the thread as commands, which it takes between two steps; what is new goes back once per step and
event loop. While it is idle, the thread holds on to nothing but the queue of its commands.
"""

from __future__ import annotations

import asyncio
import atexit
import threading
from collections.abc import AsyncIterator, Callable, Iterable
from concurrent.futures import Future
from contextlib import suppress
from queue import SimpleQueue
from typing import Any, NamedTuple, TypeVar
from weakref import ReferenceType, WeakKeyDictionary, finalize, ref

from runtime.engine import Engine, Piece, Prompt
from runtime.errors import BadOption, EngineClosed, EngineInUse
from runtime.request import ANSWERED, Request
from runtime.tokenizer import TextStream

T = TypeVar("T")
Loop = asyncio.AbstractEventLoop
Command = tuple[Callable[[Engine], Any], "Future[Any]"]
Commands = SimpleQueue[Command | None]  # None: end

EXIT_SECONDS = 10.0
_claiming = threading.RLock()
_threads: WeakKeyDictionary[threading.Thread, Commands] = WeakKeyDictionary()


class AsyncFront:
    """Owns an engine until `close`, or until nobody holds the front: all others who call the engine get EngineInUse.

    It may be used from several event loops and threads. A command waits for the step that runs, never an event loop.
    A consumer that is slow gets what has come meanwhile as one piece. A step that raises ends the requests it ran:
    their streams raise that error; the front goes on. After `close`, or once the engine is closed, everything raises
    EngineClosed. Raises EngineInUse if the engine has a front already.
    """

    def __init__(self, engine: Engine) -> None:
        self._worker = Worker(engine)
        commands = self._worker.commands
        self._thread = threading.Thread(
            target=_serve, args=(commands, ref(self._worker), ref(engine)), name="engine", daemon=True
        )
        with _claiming:
            engine.check_open()
            if engine.owner is not None:
                raise EngineInUse
            self._thread.start()
            engine.owner = self._thread.ident
        _threads[self._thread] = commands
        finalize(self, commands.put, None).atexit = False
        self._worker.post(lambda _: None)  # requests that were submitted before run on

    @classmethod
    def of(cls, engine: Engine) -> AsyncFront:
        """The front that the engine holds, made when it is first asked for and again after it was closed."""
        with _claiming:
            if engine.front is None or engine.front.closed:
                engine.front = cls(engine)
            return engine.front

    # Requests

    async def stream(self, prompt: Prompt | Request, **options: object) -> AsyncIterator[Piece]:
        """Pieces of one answer as they come. Leaving the loop, by cancellation or a timeout too, cancels the request.

        As Engine.stream: a prompt is submitted when the first piece is asked for; a request has its own options. Ends
        like that when the request is cancelled or late: see its finish_reason. Raises what `submit` raises, the error
        of a step or of the request, or EngineClosed.
        """
        if isinstance(prompt, Request) and options:
            raise BadOption(option=", ".join(options), value=options, allowed="only with a prompt, not a request")
        listener = Listener(asyncio.get_running_loop())
        request = await self._request(lambda engine: self._worker.listen(engine, listener, prompt, options))
        text = TextStream(request.options.stop, request.earliest_stop)
        try:
            while (news := await listener.wait()).end is None:
                yield Piece(text.push(news.tokens), tuple(news.tokens))
            piece = Piece(text.push(request.spoken(news.tokens), final=True), tuple(news.tokens))
            if piece.text or piece.tokens:
                yield piece
            if news.end.error is not None:
                raise news.end.error
        finally:
            if listener.end is None:
                self._worker.cancel(request)

    async def submit(self, prompt: Prompt, **options: object) -> Request:
        """Engine.submit. The request is cancelled if this call is."""
        return await self._request(lambda engine: engine.submit(prompt, **options))

    async def cancel(self, request: Request) -> None:
        """Engine.cancel."""
        await self.run(lambda engine: engine.cancel(request))

    async def run(self, function: Callable[[Engine], T]) -> T:
        """Call `function` with the engine in its thread, between two steps, and return what it returns or raises.

        Steps wait meanwhile. It is called even if this coroutine is cancelled while it has begun.
        """
        return await asyncio.wrap_future(self._worker.post(function))

    async def _request(self, function: Callable[[Engine], Request]) -> Request:
        """`run` for a function that makes a request: nobody would ever end that of a caller who is gone."""
        made = self._worker.post(function)
        try:
            return await asyncio.wrap_future(made)
        except asyncio.CancelledError:
            made.add_done_callback(self._worker.cancel_result)
            raise

    # The end

    @property
    def closed(self) -> bool:
        """Whether it has given the engine back."""
        return self._worker.ended.done()

    async def close(self) -> None:
        """Cancel all requests, end the thread and give the engine back. Streams raise EngineClosed."""
        self._worker.commands.put(None)
        await asyncio.wrap_future(self._worker.ended)

    def shutdown(self) -> None:
        """`close` for those who may block. In the engine's thread it returns at once, and the thread ends after it."""
        _end_thread(self._thread, self._worker.commands)

    async def __aenter__(self) -> AsyncFront:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class End(NamedTuple):
    """Nothing more will come. reason: the request's; error: to be raised."""

    reason: str | None
    error: BaseException | None


class News(NamedTuple):
    """What a stream has not yielded yet."""

    tokens: list[int]
    end: End | None


class Listener:
    """The end of one stream in its event loop. shown: tokens sent to it; that one belongs to the engine's thread."""

    def __init__(self, loop: Loop) -> None:
        self.loop, self.shown = loop, 0
        self.tokens: list[int] = []
        self.end: End | None = None
        self._arrived = asyncio.Event()

    def receive(self, tokens: list[int], end: End | None) -> None:
        """In the loop's thread."""
        self.tokens += tokens
        self.end = end
        self._arrived.set()

    async def wait(self) -> News:
        """What came since the last call; at least a token or the end."""
        await self._arrived.wait()
        self._arrived.clear()
        news = News(self.tokens, self.end)
        self.tokens = []
        return news


class Worker:
    """The engine's thread, as an object. `post`, `cancel` and `cancel_result` may be called anywhere, the rest in it.

    open: requests that have not ended yet, or whose end is still to be told, with those who listen.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.commands: Commands = SimpleQueue()
        self.open: dict[Request, list[Listener]] = {}
        self.errors: WeakKeyDictionary[Request, BaseException] = WeakKeyDictionary()
        self.ended: Future[None] = Future()
        self.ended.set_running_or_notify_cancel()  # who waits for it cannot cancel it
        self._lock = threading.Lock()
        self._accepts, self._ending, self._taken = True, False, False

    # From anywhere

    def post(self, function: Callable[[Engine], T]) -> Future[T]:
        """Have a function called between two steps. Raises EngineClosed."""
        future: Future[T] = Future()
        with self._lock:
            if not self._accepts:
                raise EngineClosed
            self.commands.put((function, future))
        return future

    def cancel(self, request: Request) -> None:
        """Without waiting, and whatever has become of it or the engine."""
        with suppress(EngineClosed):
            self.post(lambda engine: engine.cancel(request))

    def cancel_result(self, made: Future[Request]) -> None:
        """Cancel the request that a command has made, if it has."""
        if not made.cancelled() and made.exception() is None:
            self.cancel(made.result())

    # The loop

    def work(self, command: Command | None) -> bool:
        """Take a command, and go on until nothing is left to do. False: the engine is given back."""
        end: BaseException = EngineClosed()
        try:
            self._take(command)
            while self._take_all():
                if not self._advance():
                    return True
        except BaseException as error:
            end = error
        self._end(end)
        return False

    def _advance(self) -> bool:
        """One step, if there is something to run, and its news. False if there was nothing at all to do."""
        busy = self.engine.busy
        moved = self._step() if busy else []
        ended = [request for request in self.open if request.finished]
        self._tell(dict.fromkeys([*moved, *ended]))
        return busy or bool(ended)

    def _step(self) -> list[Request]:
        """The requests that got tokens. If the step raises: an end with that error for those it dropped."""
        try:
            return [request for request, _ in self.engine.step()]
        except BaseException as error:
            dropped = [request for request in self.open if request.finish_reason == "error"]
            if not dropped:  # nobody's step: the next one would raise again
                dropped = [request for request in self.open if not request.finished]
                self.engine.scheduler.cancel_all()
            self.errors |= dict.fromkeys(dropped, error)
            return []

    def _end(self, error: BaseException) -> None:
        """Take nothing more, end everything with `error`, give the engine back."""
        with self._lock:
            self._accepts = False
        try:
            for request in self.open:
                if request.finish_reason not in (*ANSWERED, "deadline"):
                    self.errors.setdefault(request, error)
            with suppress(Exception):
                self.engine.scheduler.cancel_all()
            self._tell(list(self.open))
            self._refuse(error)
        finally:
            self.engine.owner = None
            self.ended.set_result(None)

    def _refuse(self, error: BaseException) -> None:
        """Commands that came too late."""
        while not self.commands.empty():
            command = self.commands.get()
            if command is not None and command[1].set_running_or_notify_cancel():
                command[1].set_exception(error)

    # Commands

    def _take_all(self) -> bool:
        """Those that are there now: more that come meanwhile wait for a step. False: the engine is to be given back."""
        for _ in range(self.commands.qsize()):
            self._take(self.commands.get())
        if self._taken:
            self._taken = False
            self._look()
        return not self._ending and not self.engine.closed

    def _look(self) -> None:
        """What commands may have done: requests that are new, and such that were rewound and go on from there."""
        for request in self.engine.scheduler.unfinished():
            self.errors.pop(request, None)
            for listener in self.open.setdefault(request, []):
                listener.shown = min(listener.shown, len(request.tokens))

    def _take(self, command: Command | None) -> None:
        self._taken = True
        if command is None:
            self._ending = True
            return
        function, future = command
        if future.set_running_or_notify_cancel():
            try:
                future.set_result(function(self.engine))
            except StopIteration as stop:  # an asyncio future refuses it, and its waiter would wait for ever
                future.set_exception(RuntimeError("a command raised StopIteration").with_traceback(stop.__traceback__))
            except BaseException as error:
                future.set_exception(error)

    def listen(self, engine: Engine, listener: Listener, prompt: Prompt | Request, options: dict[str, Any]) -> Request:
        """A command: submit a prompt if it is one, and send what the request has and gets to a listener."""
        request = prompt if isinstance(prompt, Request) else engine.submit(prompt, **options)
        engine.check_mine(request)
        listener.shown = request.prompt_len
        self.open.setdefault(request, []).append(listener)
        if len(request.tokens) > listener.shown:
            self._tell([request])
        return request

    # News

    def _tell(self, requests: Iterable[Request]) -> None:
        """Send what is new of these requests to those who listen: one call per event loop."""
        letters: dict[Loop, list[tuple[Listener, News, Request]]] = {}
        for request in requests:
            error = self.errors.get(request) or request.error
            end = End(request.finish_reason, error) if request.finished or error is not None else None
            for listener in self.open.get(request, ()):
                news = News(request.tokens[listener.shown :], end)
                listener.shown = len(request.tokens)
                letters.setdefault(listener.loop, []).append((listener, news, request))
            if end is not None:
                self.open.pop(request, None)
        for loop, letter in letters.items():
            try:
                loop.call_soon_threadsafe(_deliver, letter)
            except RuntimeError:  # the loop is closed, and its streams with it
                self._lose(letter)

    def _lose(self, letter: list[tuple[Listener, News, Request]]) -> None:
        for listener, _, request in letter:
            if request in self.open:
                self.open[request].remove(listener)
                self.engine.scheduler.cancel(request)


def _deliver(letter: list[tuple[Listener, News, Request]]) -> None:
    for listener, news, _ in letter:
        listener.receive(*news)


def _serve(commands: Commands, worker_ref: ReferenceType[Worker], engine_ref: ReferenceType[Engine]) -> None:
    """The thread. Between two pieces of work it keeps neither front nor engine alive."""
    while True:
        command = commands.get()
        worker = worker_ref()
        if worker is None:
            break
        if not worker.work(command):
            return
        del command, worker
    engine = engine_ref()
    if engine is not None:
        engine.owner = None


def release(engine: Engine) -> None:
    """Shut down the front that an engine has, whoever made it."""
    for thread, commands in list(_threads.items()):
        if thread.ident == engine.owner:
            _end_thread(thread, commands)


def _end_thread(thread: threading.Thread, commands: Commands, seconds: float | None = None) -> None:
    commands.put(None)
    if thread is not threading.current_thread():
        thread.join(seconds)


@atexit.register
def _end_threads() -> None:
    """A daemon thread would be stopped anywhere, in the middle of a kernel too: it ends before the interpreter does."""
    for thread, commands in list(_threads.items()):
        _end_thread(thread, commands, EXIT_SECONDS)
