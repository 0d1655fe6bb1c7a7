"""Every dialect has a word for every reason why an answer ends, whole and streamed."""

from __future__ import annotations

from dataclasses import replace

import msgspec

from dragoman.types import FinishReason
from tests.support.scripted import scripted_events, scripted_result
from tests.support.small_server import CALLS, id_of, parsed


def test_no_answer_is_without_a_word_for_its_end() -> None:
    assert len(CALLS) > 30
    for calling in CALLS:
        for reason in FinishReason:
            call = parsed(calling)
            assert call is not None
            results = [scripted_result(request) for request in call.requests]
            ended = [
                replace(one, sequences=tuple(replace(sequence, finish_reason=reason) for sequence in one.sequences))
                for one in results
            ]
            assert call.encoder.full(ended).status < 300, (id_of(calling), reason)
            call = parsed(calling)
            assert call is not None
            call.encoder.head([])
            for number, request in enumerate(call.requests):
                for event in scripted_events(request):
                    finish = None if event.finish_reason is None else reason
                    call.encoder.event(number, msgspec.structs.replace(event, finish_reason=finish))
