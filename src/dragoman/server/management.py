"""Health checks, model lists and the other routes that generate nothing.

Does: build their bodies from the registry; answer calls about adapters as LMI does where there are none. Does not: touch
engines beyond asking for their health.
Called by the app, on the event loop; never waits, so that health checks answer however busy the models are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from dragoman import __version__
from dragoman.errors import InvalidParameter
from dragoman.server.api import HttpCall, Reply
from dragoman.server.apis.models_list import ModelFacts, lmi_model, lmi_models, openai_model, openai_models
from dragoman.server.apis.tgi.dialect import TGI_VERSION, TgiInfo
from dragoman.server.exchange import Exchange
from dragoman.server.front import bad_request, json_reply
from dragoman.server.registry import ModelRegistry, ServedModel, ServerState
from dragoman.server.routes import Gate, Handler, PathParams, Route

HEALTHY = "Healthy"  # status words of LMI's front end
UNHEALTHY = "Unhealthy"
PENDING = "PENDING"
FAILED = "FAILED"

OVMS = "OVMS"  # `owned_by` in the model list of OpenVINO Model Server

NO_LORA = bad_request("LoRA is not enabled.")  # LMI's own answer where adapters are off

_ADAPTER_CALLS = dict.fromkeys(("GET", "POST", "DELETE"), NO_LORA)

Statuses = Mapping[str, Mapping[str, str]]
"""`{"status": word}` by model."""


class ManagementRoutes:
    """Makes the handlers of the management routes. Health needs no key; what names models does, when keys are set."""

    def __init__(self, registry: ModelRegistry, gate: Gate) -> None:
        self._registry = registry
        self._gate = gate

    def routes(self) -> list[Route]:
        """All management routes."""
        return [
            Route("/ping", {"GET": self.ping, "POST": self.ping}),
            Route("/health", {"GET": self.ready}),
            Route("/v2/health/live", {"GET": self.live}),
            Route("/v2/health/ready", {"GET": self.ready}),
            Route("/info", {"GET": self._guarded(lambda _: json_reply(200, tgi_info(self._registry.find(None))))}),
            Route("/v1/models", {"GET": self._guarded(lambda _: openai_models(self._names()))}),
            Route("/v1/models/{name}", {"GET": self._guarded(self._openai_model)}),
            Route("/v3/models", {"GET": self._guarded(lambda _: openai_models(self._names(), owned_by=OVMS))}),
            Route("/v3/models/{name}", {"GET": self._guarded(self._ovms_model)}),
            Route("/models", {"GET": self._guarded(self._lmi_models)}),
            Route("/adapters", refusals=_ADAPTER_CALLS),
            Route("/adapters/{adapter}", refusals=_ADAPTER_CALLS),
            Route("/models/{name}/adapters", refusals=_ADAPTER_CALLS),
            Route("/models/{name}", {"GET": self._guarded(self._lmi_model)}),
        ]

    async def ping(self, exchange: Exchange, path_params: PathParams) -> None:
        """SageMaker's health check: 200, 503 while loading or draining, 500 when an engine is dead."""
        await exchange.send_reply(json_reply(*self.readiness()))

    async def ready(self, exchange: Exchange, path_params: PathParams) -> None:
        """Readiness: as `/ping`, for those who ask under another name. Clients of vLLM and of TGI wait for `/health`."""
        await self.ping(exchange, path_params)

    async def live(self, exchange: Exchange, path_params: PathParams) -> None:
        """Liveness: 200 as long as a restart would not help; loading and draining are alive, a dead engine is not."""
        status = 500 if self._is_dead() else 200
        await exchange.send_reply(json_reply(status, {"status": UNHEALTHY if status == 500 else HEALTHY}))

    def readiness(self) -> tuple[int, Statuses]:
        """The status of the health checks, and each model's."""
        return self._ready_status(), self._statuses()

    def _guarded(self, answer: Callable[[HttpCall], Reply]) -> Handler:
        """A handler that asks for the key, then answers."""

        async def handle(exchange: Exchange, path_params: PathParams) -> None:
            http = exchange.http_call(path_params=path_params)
            self._gate.check_key(http)
            await exchange.send_reply(answer(http))

        return handle

    def _openai_model(self, http: HttpCall) -> Reply:
        model = self._registry.find(http.path_params["name"])
        return openai_model([_facts(model)], model.name)

    def _ovms_model(self, http: HttpCall) -> Reply:
        model = self._registry.find(http.path_params["name"])
        return openai_model([_facts(model)], model.name, owned_by=OVMS)

    def _lmi_models(self, http: HttpCall) -> Reply:
        try:
            return lmi_models([_facts(model) for model in self._registry.models], http.query)
        except InvalidParameter as error:  # not a generation parameter: the front end's own shape
            return bad_request(error.message)

    def _lmi_model(self, http: HttpCall) -> Reply:
        model = self._registry.find(http.path_params["name"])
        return lmi_model([_facts(model)], model.name)

    def _names(self) -> list[ModelFacts]:
        """Every name that can be asked for: a client that picks one of the list must be served."""
        return [
            replace(_facts(model), name=name)
            for model in self._registry.models
            for name in (model.name, *model.aliases)
        ]

    def _is_dead(self) -> bool:
        """True if no request can ever be served again; the engines that a drain stopped are not dead, they are done."""
        if self._registry.state in (ServerState.FAILED, ServerState.DRAINING):
            return self._registry.state is ServerState.FAILED
        return any(not model.engine.health().is_alive for model in self._registry.models)

    def _ready_status(self) -> int:
        if self._is_dead():
            return 500
        return 200 if self._registry.state is ServerState.READY else 503

    def _statuses(self) -> Statuses:
        """Each model's status; models that still load are PENDING, and all are unhealthy during a drain."""
        is_draining = self._registry.state is ServerState.DRAINING
        statuses: dict[str, dict[str, str]] = {}
        for model in self._registry.models:
            if is_draining:
                statuses[model.name] = {"status": UNHEALTHY}
            else:
                statuses[model.name] = {"status": HEALTHY if model.engine.health().is_alive else FAILED}
        waiting = FAILED if self._registry.state is ServerState.FAILED else PENDING
        statuses.update((name, {"status": waiting}) for name in self._registry.expected_names)
        return statuses


def _facts(model: ServedModel) -> ModelFacts:
    """What the lists tell about a model."""
    health = model.engine.health()
    return ModelFacts(
        name=model.name,
        version=model.version or None,
        created_s=model.created_s,
        url=model.url,
        status="READY" if health.is_alive else FAILED,
        device=model.device,
        max_model_len=model.engine.capabilities.max_model_len,
        batch_size=model.admission.max_running,
        queue_size=model.admission.max_queued,
        num_waiting=health.num_waiting,
    )


def tgi_info(model: ServedModel) -> TgiInfo:
    """The body of TGI's `GET /info`."""
    max_model_len = model.engine.capabilities.max_model_len
    return TgiInfo(
        model_id=model.name,
        model_dtype=model.dtype or None,
        model_device_type=model.device,
        max_concurrent_requests=model.admission.limit,
        max_best_of=model.limits.max_best_of,
        max_stop_sequences=model.limits.max_stop_strings,
        max_input_tokens=max_model_len - 1,  # at least one token has to be generated
        max_total_tokens=max_model_len,
        version=TGI_VERSION,
        docker_label=f"dragoman-{__version__}",
    )
