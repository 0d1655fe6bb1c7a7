"""The body of TGI's `GET /info`."""

from __future__ import annotations

import msgspec

from dragoman.server.apis.tgi import TgiInfo


def test_info_has_tgis_fields_in_tgis_order() -> None:
    info = TgiInfo(
        model_id="m",
        max_concurrent_requests=128,
        max_best_of=20,
        max_stop_sequences=64,
        max_input_tokens=4095,
        max_total_tokens=4096,
        version="1.0",
    )
    assert msgspec.json.encode(info) == (
        b'{"model_id":"m","model_sha":null,"model_dtype":null,"model_device_type":"cpu",'
        b'"model_pipeline_tag":"text-generation","max_concurrent_requests":128,"max_best_of":20,"max_stop_sequences":64,'
        b'"max_input_tokens":4095,"max_total_tokens":4096,"router":"dragoman","version":"1.0","sha":null,'
        b'"docker_label":null}'
    )
