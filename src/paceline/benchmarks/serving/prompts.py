"""Requests to language models: fresh prompts of given lengths, the user's own, or those that a trace describes."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from paceline.benchmarks.serving.requests import Requests
from paceline.benchmarks.serving.texts import WORDS, Chat, Message, bad_dataset, read_chats
from paceline.core.errors import InputError
from paceline.load.arrivals import Schedule
from paceline.load.fresh import MOST_WORDS, NO_SLOT, WIDTH, Slot
from paceline.load.parameters import OUTPUT, PROMPT, RequestParameters
from paceline.load.request import Endpoint, Prepared
from paceline.load.tokenizer import TokenCounter

UNKNOWN_COUNT = 1024  # different prompts where it is not known how many are sent; each gets fresh words as it is sent
MOST_DIFFERENT = 4096
MOST_BYTES = 512 * 2**20  # of all prompts together, which every process that sends has
WARM_UP_PROMPTS = 8
BLOCK = 512  # tokens that one hash of a trace stands for
_MARK = "~" * WIDTH  # in the place of a fresh word


@dataclass(frozen=True)
class PromptMaker:
    """Makes the requests of one case."""

    parameters: RequestParameters
    endpoint: Endpoint
    seed: int
    planned: int | None = None  # requests of the load, where that is known
    schedule: Schedule | None = None  # of a trace, which may say how long prompts and answers are
    words: Sequence[str] = tuple(WORDS)

    def made(self) -> Requests:
        """All different requests."""
        schedule, dataset = self.schedule, self.parameters.dataset
        if dataset is not None:
            chats, source = read_chats(dataset), f"the user's file {dataset.name}, in its order"
        elif schedule is not None and schedule.prompt_tokens is not None:
            chats, source = list(self._traced(schedule)), "prompts as long as the trace says"
            source += ", with its prefixes" if schedule.blocks is not None else ""
        else:
            chats = list(self._drawn())
            source = "random common words, about one token each; lengths are near, not exact"
            if self._are_fresh:
                source += "; no prompt is sent twice"
        outputs = self._outputs(chats)
        prepared, size = [], 0
        for chat, length in zip(chats, outputs, strict=True):
            prepared.append(self._request(chat, int(length)))
            size += len(prepared[-1].body)
            if size > MOST_BYTES:
                message = f"the prompts take more than {MOST_BYTES // 2**20} MiB: send fewer of them (load.requests)"
                raise InputError("too-large", message, key="load.requests")
        warm_up = [self._request(chat, int(np.median(outputs))) for chat in self._fresh(WARM_UP_PROMPTS, 3)]
        return Requests(
            prepared,
            source,
            is_streaming=self.parameters.stream,
            in_turn=True,
            warm_up=warm_up,
            fresh=self._fresh_words,
            prompt_lengths=[len(chat.text.split()) for chat in chats] if dataset is None else [],
            output_lengths=[int(length) for length in outputs],
        )

    @property
    def _are_fresh(self) -> bool:
        return self.parameters.distinct is None

    @cached_property
    def _fresh_words(self) -> tuple[str, ...]:
        return tuple(str(word) for word in self.words if len(word) == WIDTH)

    def _random(self, *key: int) -> np.random.Generator:
        return np.random.default_rng(np.random.SeedSequence(self.seed, spawn_key=(2, *key)))

    def _drawn(self) -> Iterator[Chat]:
        count = self.parameters.distinct or min(self.planned or UNKNOWN_COUNT, MOST_DIFFERENT)
        return self._fresh(count, 0) if self._are_fresh else self._repeated(count, 0)

    def _repeated(self, count: int, key: int) -> Iterator[Chat]:
        for same, own in self._words(count, key):
            yield self._asked([*same, *own])

    def _fresh(self, count: int, key: int) -> Iterator[Chat]:
        """Prompts whose first words after what all share are chosen as they are sent."""
        for same, own in self._words(count, key):
            number = min(MOST_WORDS, len(own)) if self._fresh_words else 0
            yield self._asked([*same, *[_MARK] * number, *own[number:]], number)

    def _words(self, count: int, key: int) -> Iterator[tuple[list[str], list[str]]]:
        """The shared and the own words of each prompt."""
        random = self._random(key)
        sizes = (self.parameters.prompt_tokens or PROMPT).draw(count, random)
        prefix = self._random(1).choice(self.words, size=int(sizes.max())).tolist()
        for size in sizes:
            same = round(self.parameters.shared_prefix * int(size))
            yield prefix[:same], random.choice(self.words, size=int(size) - same).tolist()

    def _traced(self, schedule: Schedule) -> Iterator[Chat]:
        """A prompt for each arrival of a trace; equal blocks have equal words, which no earlier run has sent."""
        assert schedule.prompt_tokens is not None
        salt, cache = secrets.randbits(64), dict[int, list[str]]()
        random = self._random(0)
        for row, length in enumerate(schedule.prompt_tokens.tolist()):
            words: list[str] = []
            for block in schedule.blocks[row] if schedule.blocks is not None else ():
                if block not in cache:
                    cache[block] = np.random.default_rng([salt, block]).choice(self.words, size=BLOCK).tolist()
                words += cache[block]
            number = min(MOST_WORDS, length) if self._fresh_words and not words else 0
            own = random.choice(self.words, size=max(0, length - len(words) - number)).tolist()
            yield self._asked([*words[:length], *[_MARK] * number, *own], number)

    @cached_property
    def _system(self) -> tuple[Message, ...]:
        if self.parameters.system_tokens is None:
            return ()
        text = " ".join(self._random(4).choice(self.words, size=self.parameters.system_tokens))
        return ({"role": "system", "content": text},)

    def _asked(self, words: Sequence[str], fresh: int = 0) -> Chat:
        return Chat((*self._system, {"role": "user", "content": " ".join(words)}), fresh=fresh)

    def _outputs(self, chats: Sequence[Chat]) -> NDArray[np.int64]:
        """How long each answer is to be: as the trace says, as was recorded where that can be counted, or as asked."""
        given, counter = self.parameters.output_tokens, TokenCounter.of(self.parameters.tokenizer)
        if given is None and self.schedule is not None and self.schedule.output_tokens is not None:
            return np.resize(self.schedule.output_tokens.astype(np.int64), len(chats))
        drawn = (given or OUTPUT).draw(len(chats), self._random(5))
        if given is None and counter is not None:
            recorded = [counter(chat.answer) if chat.answer else 0 for chat in chats]
            return np.where(np.array(recorded) > 0, recorded, drawn)
        return drawn

    def _request(self, chat: Chat, length: int) -> Prepared:
        parameters = self.parameters
        body = {"model": self.endpoint.model, "max_tokens": length, "stream": parameters.stream, "temperature": 0.0}
        body |= {"stream_options": {"include_usage": True}} if parameters.stream else {}
        body |= {"ignore_eos": True} if parameters.ignore_eos else {}
        body |= {"min_tokens": min(parameters.min_tokens, length)} if parameters.min_tokens is not None else {}
        if self.endpoint.wire == "openai-completions":
            body["prompt"] = chat.text
        else:
            body["messages"] = list(chat.messages)
        body = {name: value for name, value in (body | parameters.extra).items() if value is not None}
        written = json.dumps(body).encode()
        slot = Slot(written.index(" ".join([_MARK] * chat.fresh).encode()), chat.fresh) if chat.fresh else NO_SLOT
        return Prepared(written, {"content-type": "application/json"}, fresh=slot)


def check_prompts(parameters: RequestParameters) -> None:
    """Refuse, before anything starts, a file or a tokenizer that cannot be used."""
    if parameters.dataset is not None:
        read_chats(parameters.dataset)
        if parameters.prompt_tokens is not None or parameters.shared_prefix:
            message = "prompt_tokens and shared_prefix are of made-up prompts; leave them out with a file"
            raise bad_dataset("conflicting-keys", parameters.dataset, message)
    TokenCounter.of(parameters.tokenizer)
