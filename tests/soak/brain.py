"""What the engine of the soak does with a request: as long as it asks for, and as well as the mood is."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from tests.support.answers import EVENT_STREAM, Usage, Whole, chunk, event, failure

if TYPE_CHECKING:
    from tests.support.reply import Reply, Script, Seen

Mood = Literal["well", "errors", "stalled"]

STALL_LOOK_S = 0.05
PROMPT_TOKENS = 64


@dataclass
class Brain:
    """Chooses the script of each request; lives in the engine's thread, `mood` is set from outside."""

    mood: Mood = "well"
    known: set[str] = field(default_factory=set)

    def choose(self, seen: Seen) -> Script:
        """Return the script for a request; its body says what it wants in `soak`."""
        if self.mood == "errors":
            return failure(500)
        asked = seen.json()
        wish: dict[str, Any] = asked.get("soak") or {}
        prompt = str(asked.get("messages") or asked.get("input"))
        usage = Usage(PROMPT_TOKENS, PROMPT_TOKENS - 1 if prompt in self.known else 0)
        if len(self.known) < 1000:
            self.known.add(prompt)
        if asked.get("stream"):
            return Paced(self, usage, **wish)
        return Whole(usage=usage, delay_s=wish.get("delay_s", 0.0))

    def crash(self) -> None:
        """Forget what was cached."""
        self.known.clear()
        self.mood = "well"


@dataclass(frozen=True)
class Paced:
    """A stream of `tokens` tokens of `size` characters, `gap_s` apart; halts while the engine is stalled."""

    brain: Brain
    usage: Usage
    tokens: int = 3
    gap_s: float = 0.02
    delay_s: float = 0.0
    size: int = 8

    async def __call__(self, reply: Reply) -> None:
        """Write the whole reply."""
        await reply.pause(self.delay_s)
        await self._halt(reply)
        await reply.head(200, (EVENT_STREAM,))
        await reply.piece(chunk({"role": "assistant", "content": None}))
        for number in range(self.tokens):
            await reply.pause(self.gap_s)
            await self._halt(reply)
            await reply.piece(chunk({"content": f"{number}".rjust(self.size)}))
        await reply.piece(chunk({}, "stop"))
        usage = self.usage.report(self.tokens)
        await reply.piece(event({"object": "chat.completion.chunk", "choices": [], "usage": usage}))
        await reply.piece(b"data: [DONE]\n\n")
        await reply.end()

    async def _halt(self, reply: Reply) -> None:
        while self.brain.mood == "stalled":
            await reply.pause(STALL_LOOK_S)
