"""Requests to language models: fresh prompts of given lengths, the user's own, or those that a trace describes."""

from __future__ import annotations

import base64
import json
import re
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.benchmarks.serving.bodies import body_of, check_wire
from paceline.benchmarks.serving.requests import Requests, picture
from paceline.benchmarks.serving.texts import WORDS, Chat, Message, Script, bad_dataset, read_chats, read_scripts
from paceline.core.errors import InputError
from paceline.load.arrivals import BLOCK, Schedule, prefix_share
from paceline.load.parameters import OUTPUT, PROMPT, RequestParameters
from paceline.load.request import MOST_WORDS, NO_SLOT, TEXT_WIRES, WIDTH, Endpoint, Prepared, Slot, Wire, sizes
from paceline.load.results import TokenCounter

UNKNOWN_COUNT = 1024  # different prompts where it is not known how many are sent; each gets fresh words as it is sent
MOST_DIFFERENT = 4096
MOST_BYTES = 512 * 2**20  # of all prompts together, which every process that sends has
WARM_UP_PROMPTS = 8
MOST_PICTURES = 256  # different ones; prompts have them in rotation
_MARK = "~" * WIDTH  # in the place of a fresh word
_QUOTED = re.compile(rb"\\u0001(\d+)\\u0001")  # in the place of an answer, as JSON has it


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
            chats, source = self._recorded(dataset), f"the user's file {dataset.name}, in its order"
        elif schedule is not None and schedule.prompt_tokens is not None:
            chats, source = list(self._traced(schedule)), "prompts as long as the trace says"
            if schedule.blocks is not None:
                share = prefix_share(schedule.blocks, schedule.prompt_tokens.tolist())
                source += f", with its prefixes: a cache without limits knows {100 * share:.1f} % of their tokens"
        else:
            chats = list(self._drawn())
            source = "random common words, about one token each; lengths are near, not exact"
            if self._are_fresh:
                source += "; no prompt is sent twice"
        outputs = self._outputs(chats)
        models = self._models(chats)
        closed = self._closed(len(chats))
        prepared, size = [], 0
        for kind, (chat, length) in enumerate(zip(chats, outputs, strict=True)):
            prepared.append(self._request(chat, int(length), models[kind], is_closed=bool(closed[kind])))
            size += len(prepared[-1].body)
            if size > MOST_BYTES:
                message = f"the prompts take more than {MOST_BYTES // 2**20} MiB: send fewer of them (load.requests)"
                raise InputError("too-large", message, key="load.requests")
        alone = replace(self, parameters=self.parameters.model_copy(update={"turns": None}))
        warm_up = [self._request(chat, int(np.median(outputs)), models[0]) for chat in alone._fresh(WARM_UP_PROMPTS, 3)]
        schema = self.parameters.json_schema
        return Requests(
            prepared,
            source,
            is_streaming=self.parameters.stream and self.endpoint.wire in TEXT_WIRES,
            in_turn=True,
            warm_up=warm_up,
            fresh=self._fresh_words,
            prompt_lengths=self._prompts(chats, outputs) if dataset is None else [],
            output_lengths=[int(length) for length in outputs],
            models=models if self.parameters.models else [],
            json_keys=None if schema is None else tuple(map(str, schema.get("required") or ())),
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
        most = max(1, int(MOST_DIFFERENT / self.parameters.each))
        count = self.parameters.distinct or min(self.planned or UNKNOWN_COUNT, most)
        return self._fresh(count, 0) if self._are_fresh else self._repeated(count, 0)

    def _repeated(self, count: int, key: int) -> Iterator[Chat]:
        yield from self._scripted(self._words(count, key), key)

    def _fresh(self, count: int, key: int) -> Iterator[Chat]:
        """Prompts whose first words after what all share are chosen as they are sent."""
        yield from self._scripted(self._words(count, key), key, MOST_WORDS if self._fresh_words else 0)

    def _scripted(self, openings: Iterator[tuple[list[str], list[str]]], key: int, fresh: int = 0) -> Iterator[Chat]:
        """The requests of each conversation, most often one; `fresh` words of its first are chosen as it is sent."""
        sent, random = self.parameters, self._random(6, key)
        first = 0
        for same, own in openings:
            number = min(fresh, len(own))
            turns = int(sent.turns.draw(1, random)[0]) if sent.turns is not None else 1
            words = [[*same, *[_MARK] * number, *own[number:]]]
            words += [self._text(random) for _ in range(self._texts(random) - 1 if turns == 1 else turns - 1)]
            if self.endpoint.wire not in TEXT_WIRES:  # every text is one of its own
                yield Chat(tuple({"role": "user", "content": " ".join(one)} for one in words), fresh=number)
                continue
            tasks = [[" ".join(self._text(random)) for _ in range(sent.fan_out or 0)] for _ in range(turns - 1)]
            questions = tuple(self._with_pictures(" ".join(one), index) for index, one in enumerate(words, first))
            script, waits = Script(self._system, questions), self._waits(turns, random)
            chats = script.chats(first, waits, tasks if sent.fan_out else (), number)
            first += len(chats)
            yield from chats

    def _texts(self, random: np.random.Generator) -> int:
        """How many a request has that is no conversation: an embedding some, a reranking also its query."""
        if self.endpoint.wire in TEXT_WIRES:
            return 1
        return int(self.parameters.samples.draw(1, random)[0]) + (self.endpoint.wire == "rerank")

    def _text(self, random: np.random.Generator) -> list[str]:
        """The words of one more turn or text."""
        (size,) = (self.parameters.prompt_tokens or PROMPT).draw(1, random)
        return [str(word) for word in random.choice(self.words, size=int(size))]

    def _waits(self, turns: int, random: np.random.Generator) -> list[float]:
        """Seconds before each turn but the first."""
        pause = self.parameters.think_time
        return [0.0] * (turns - 1) if pause is None else (pause.draw(turns - 1, random) / 1000).tolist()

    def _recorded(self, dataset: Path) -> list[Chat]:
        """The user's own prompts, or the conversations of a file up to so many turns."""
        most, random, chats = self.parameters.turns, self._random(6), list[Chat]()
        if most is None:
            return [replace(one, messages=(*self._system, *one.messages)) for one in read_chats(dataset)]
        for script in read_scripts(dataset):
            questions = script.questions[: int(most.draw(1, random)[0])]
            opening = (*self._system, *script.opening)
            waits = self._waits(len(questions), random)
            chats += Script(opening, questions, script.answers).chats(len(chats), waits)
        return chats

    @cached_property
    def _pictures(self) -> list[str]:
        """As prompts have them: JPEG files as data of a URL."""
        sent, random = self.parameters, self._random(7)
        width, height = map(int, sent.image_size.split("x"))
        number = min(MOST_PICTURES, sent.images * min(self.planned or UNKNOWN_COUNT, self.parameters.distinct or 10**9))
        files = (picture(random, (width, height)) for _ in range(number))
        return [f"data:image/jpeg;base64,{base64.b64encode(file).decode()}" for file in files]

    def _with_pictures(self, text: str, index: int) -> Any:
        """The content of a message."""
        number = self.parameters.images
        if not number:
            return text
        chosen = [self._pictures[(index * number + one) % len(self._pictures)] for one in range(number)]
        return [{"type": "text", "text": text}, *({"type": "image_url", "image_url": {"url": url}} for url in chosen)]

    def _models(self, chats: Sequence[Chat]) -> list[str]:
        """The model of each request; that of a conversation is one."""
        weights = self.parameters.models
        if not weights:
            return [self.endpoint.model] * len(chats)
        count = sizes(chat.turn for chat in chats)
        shares = np.array(list(weights.values()))
        drawn = self._random(8).choice(np.array(list(weights)), size=len(count), p=shares / shares.sum())
        return [str(name) for name in np.repeat(drawn, count)]

    def _closed(self, count: int) -> NDArray[np.bool_]:
        """Which requests their users close early."""
        cancel = self.parameters.cancel
        return self._random(9).random(count) < (cancel.share if cancel is not None else 0.0)

    def _prompts(self, chats: Sequence[Chat], outputs: NDArray[np.int64]) -> list[int]:
        """The length of each prompt, with the answers that it quotes as long as they were asked for."""
        lengths = []
        for chat in chats:
            words = chat.text.split()
            quoted = [int(outputs[int(word.strip("\1"))]) - 1 for word in words if word.startswith("\1")]
            lengths.append(len(words) + sum(quoted))
        return lengths

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
        if self.endpoint.wire not in TEXT_WIRES:
            return np.zeros(len(chats), np.int64)
        if given is None and self.schedule is not None and self.schedule.output_tokens is not None:
            return np.resize(self.schedule.output_tokens.astype(np.int64), len(chats))
        drawn = (given or OUTPUT).draw(len(chats), self._random(5))
        if given is None and counter is not None:
            recorded = [counter(chat.answer) if chat.answer else 0 for chat in chats]
            return np.where(np.array(recorded) > 0, recorded, drawn)
        return drawn

    def _request(self, chat: Chat, length: int, model: str, *, is_closed: bool = False) -> Prepared:
        wire, cancel = self.endpoint.wire, self.parameters.cancel
        marked = json.dumps(body_of(wire, model, chat, length, self.parameters)).encode()
        written, quotes = b"", list[tuple[int, int]]()
        for index, part in enumerate(_QUOTED.split(marked)):  # texts and kinds, in alternation
            if index % 2:
                quotes.append((len(written), int(part)))
            else:
                written += part
        turn = replace(chat.turn, quotes=tuple(quotes))
        if is_closed and cancel is not None:
            turn = replace(turn, close_after=cancel.time or 0.0, close_chunks=cancel.tokens or 0)
        slot = Slot(written.index(" ".join([_MARK] * chat.fresh).encode()), chat.fresh) if chat.fresh else NO_SLOT
        texts = len(chat.messages) - (wire == "rerank") if wire not in TEXT_WIRES else 1
        return Prepared(written, {"content-type": "application/json"}, texts, fresh=slot, turn=turn)


def check_prompts(parameters: RequestParameters, wire: Wire) -> None:
    """Refuse, before anything starts, a file or a tokenizer that cannot be used, and what the wire has no place for."""
    check_wire(wire, parameters)
    if parameters.dataset is not None:
        read_chats(parameters.dataset)
        made_up = ("prompt_tokens", "shared_prefix", "fan_out", "images")
        if any(getattr(parameters, name) for name in made_up) or wire == "rerank":
            message = f"{', '.join(made_up)} and wire rerank are of made-up prompts; leave them out with a file"
            raise bad_dataset("conflicting-keys", parameters.dataset, message)
    TokenCounter.of(parameters.tokenizer)
