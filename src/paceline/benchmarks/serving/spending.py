"""What a case sends, said beforehand, and limits that hold for all of it: requests, tokens and money."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import numpy as np
from pydantic import Field, model_validator

from paceline.benchmarks.serving.texts import read_scripts
from paceline.core.errors import InputError
from paceline.core.parameters import Parameters
from paceline.core.quantity import show_duration
from paceline.load.request import LANGUAGE_PATHS, TEXT_WIRES
from paceline.load.trace import UNSENT, Trace

if TYPE_CHECKING:
    from paceline.benchmarks.serving.parameters import ServeParameters

MILLION = 1e6
FIRST_ANSWER = 1  # request before every warm-up
REMOTE_WARM_UP = 3  # requests more to a server that somebody else runs
_CAUTION = 1.5  # tokens of a word, at most, until a server has counted some


class SpendLimits(Parameters):
    """The most that may be sent to a server, warm-up and search included."""

    requests: int | None = Field(default=None, ge=1)
    """Requests, at most"""
    tokens: int | None = Field(default=None, ge=1)
    """Language models: tokens of prompts and answers together, at most"""
    usd: float | None = Field(default=None, gt=0)
    """Language models: US dollars, at most; needs the two prices"""
    usd_per_million_prompt_tokens: float | None = Field(default=None, ge=0)
    """Price of a million tokens of prompts"""
    usd_per_million_output_tokens: float | None = Field(default=None, ge=0)
    """Price of a million tokens of answers"""

    @model_validator(mode="after")
    def _has_prices(self) -> Self:
        prices = (self.usd_per_million_prompt_tokens, self.usd_per_million_output_tokens)
        if self.usd is not None and None in prices:
            raise ValueError("usd needs usd_per_million_prompt_tokens and usd_per_million_output_tokens")
        return self

    def usd_of(self, prompt: float, output: float) -> float:
        """What so many tokens cost."""
        prices = (self.usd_per_million_prompt_tokens or 0.0, self.usd_per_million_output_tokens or 0.0)
        return (prompt * prices[0] + output * prices[1]) / MILLION


@dataclass(frozen=True)
class SendPlan:
    """What a case is going to send, as far as that is known before."""

    requests: int | None  # of the load; None where answers decide
    before: int | None  # to warm up
    prompt_tokens: float | None = None  # of one request on average; None where it is not a language model
    output_tokens: float | None = None
    otherwise: str = ""  # what decides, where the number is not known
    arrivals: int | None = None  # conversations, where requests are of some
    is_drawn: bool = False  # whether answers or conversations have lengths that are drawn
    is_about: bool = False  # whether arrivals are drawn until a time is over, so that others may come than these

    @classmethod
    def of(cls, parameters: ServeParameters) -> SendPlan:
        """The plan of a case."""
        load, requests = parameters.load, parameters.requests
        warm_up = parameters.warm_up_seconds
        before = FIRST_ANSWER + REMOTE_WARM_UP if warm_up is None else None if warm_up else FIRST_ANSWER
        if before is not None and parameters.chosen_wire == "http":  # which is tried once before
            before += 1
        number, otherwise = parameters.planned_requests, ""
        if load is None:
            otherwise = f"requests at many rates for {show_duration(parameters.search_budget)} at most"
        elif number is None:
            users = "1 user" if load.concurrency == 1 else f"{load.concurrency} users"
            otherwise = f"requests of {users} for {show_duration(load.seconds)}"
            if load.arrival == "sweep":
                otherwise = f"loads of {show_duration(load.seconds)} each, with up to {load.concurrency} users"
        is_about = number is not None and load is not None and load.has_drawn_number
        if parameters.chosen_wire not in LANGUAGE_PATHS:
            return cls(number, before, otherwise=otherwise, is_about=is_about)
        prompt, output = requests.mean_lengths
        if parameters.chosen_wire not in TEXT_WIRES:
            prompt, output = prompt * (requests.samples.mean + (parameters.chosen_wire == "rerank")), 0.0
        arrivals, each = None, requests.each
        if requests.turns is not None and requests.dataset is not None:  # of which not every one has so many
            turns = [min(len(one.questions), requests.turns.mean) for one in read_scripts(requests.dataset)]
            each = sum(turns) / len(turns)
        if requests.turns is not None:
            arrivals, number = number, None if number is None else round(number * each)
            otherwise = otherwise.replace("requests", "conversations")
        schedule = load.recorded() if load is not None and load.arrival == "trace" else None
        if schedule is not None and schedule.prompt_tokens is not None and requests.dataset is None:
            prompt = float(schedule.prompt_tokens.mean())
        if schedule is not None and schedule.output_tokens is not None and requests.output_tokens is None:
            output = float(schedule.output_tokens.mean())
        drawn = (one for one in (requests.turns, requests.output_tokens) if one is not None)
        is_drawn = any(one.lowest != one.highest for one in drawn)
        return cls(number, before, prompt, output, otherwise, arrivals, is_drawn, is_about)

    @property
    def total(self) -> int | None:
        """Requests altogether, where that is known."""
        return None if self.requests is None or self.before is None else self.requests + self.before

    def __str__(self) -> str:
        about = "about " if self.is_about else ""
        text = f"sends {about}{self.requests:,} requests" if self.requests is not None else f"sends {self.otherwise}"
        text += f" of {self.arrivals:,} conversations" if self.arrivals is not None else ""
        text += f", after {self.before} to warm up" if self.before is not None else ", after a warm-up"
        if self.prompt_tokens is None or self.output_tokens is None:
            return text
        if self.total is None:
            return f"{text}; about {self.prompt_tokens:,.0f} prompt and {self.output_tokens:,.0f} output tokens each"
        prompt, output = (round(self.total * one) for one in (self.prompt_tokens, self.output_tokens))
        most = "about" if self.is_drawn or self.is_about else "at most"
        return f"{text}: about {prompt:,} prompt tokens and {most} {output:,} output tokens"

    def check(self, limits: SpendLimits) -> None:
        """Refuse, before anything is sent, what is known to be beyond a limit."""
        least = (self.requests or 1) + (self.before or FIRST_ANSWER)
        prompt, output = (least * (one or 0.0) for one in (self.prompt_tokens, self.output_tokens))
        sums = {"requests": float(least), "tokens": prompt + output, "usd": limits.usd_of(prompt, output)}
        for name, value in sums.items():
            limit = getattr(limits, name)
            if limit is not None and value > limit:
                message = (
                    f"limits.{name} = {limit:g}, but the case comes to {value:,.6g}: it {self}; send less, or raise it"
                )
                raise InputError("beyond-limit", message, key=f"limits.{name}", value=limit)


class Spending:
    """Counts what was sent, and says how much more may be."""

    def __init__(self, limits: SpendLimits) -> None:
        self._limits = limits
        self.requests = 0
        self.prompt_tokens = 0.0
        self.output_tokens = 0.0
        self._per_word = _CAUTION  # tokens that a server counts for one word, at most

    @property
    def usd(self) -> float:
        return self._limits.usd_of(self.prompt_tokens, self.output_tokens)

    def allowed(self, prompts: list[int], outputs: list[int]) -> int | None:
        """How many more requests of these lengths may be sent, each as long as the longest; None without a limit."""
        limits = self._limits
        prompt, output = self._per_word * max(prompts, default=0), max(outputs, default=0)
        most = [math.inf if limits.requests is None else limits.requests - self.requests]
        for limit, spent, each in (
            (limits.tokens, self.prompt_tokens + self.output_tokens, prompt + output),
            (limits.usd, self.usd, limits.usd_of(prompt, output)),
        ):
            if limit is not None and each > 0:
                most.append((limit - spent) / each)
        return None if min(most) == math.inf else max(0, int(min(most)))

    def count(self, trace: Trace, prompts: list[int], outputs: list[int]) -> None:
        """Add what a load has sent; tokens that no server has counted are those that were asked for."""
        sent = trace.status != UNSENT
        self.requests += int(np.count_nonzero(sent)) + trace.retried
        if not outputs:
            return
        asked = np.array(prompts or [0])[trace.kind % max(1, len(prompts))]
        counted = trace.prompt_tokens if trace.prompt_tokens is not None else np.full(len(trace), -1)
        is_counted = sent & (counted >= 0)
        if (is_counted & (asked > 0)).any():
            self._per_word = float(np.max(counted[is_counted & (asked > 0)] / asked[is_counted & (asked > 0)]))
        self.prompt_tokens += float(np.where(is_counted, counted, asked * self._per_word)[sent].sum())
        produced = trace.output_tokens if trace.output_tokens is not None else np.full(len(trace), -1)
        longest = np.array(outputs)[trace.kind % len(outputs)]
        # What was not whole may have been computed to its end all the same.
        is_known = trace.ok & (produced >= 0)
        self.output_tokens += float(np.where(is_known, produced, np.maximum(produced, longest))[sent].sum())

    @property
    def reached(self) -> str:
        """Why nothing more is sent."""
        sent = [f"{self.requests:,} requests"]
        if self.output_tokens:
            sent += [f"{round(self.prompt_tokens):,} tokens in prompts", f"{round(self.output_tokens):,} in answers"]
        sent += [f"{self.usd:.2g} USD"] if self.usd else []
        return f"limits were reached after {', '.join(sent)}: allow more (--limits.requests), or ask for less"

    def facts(self) -> dict[str, object]:
        """What was sent altogether."""
        sent: dict[str, object] = {"requests": self.requests}
        if self.output_tokens:
            sent |= {"prompt_tokens": round(self.prompt_tokens), "output_tokens": round(self.output_tokens)}
        return sent | ({"usd": round(self.usd, 6)} if self.usd else {})
