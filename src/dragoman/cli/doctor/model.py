"""Examines a configuration's model for the doctor, without loading it. Importing this imports the runtime."""

from __future__ import annotations

from dragoman.config.resolve import Config, ConfigError
from dragoman.host.loading import check_room, citing, engine_setup, generates, has_model, memory_needs
from dragoman.models import ModelError
from dragoman.tools.doctor.examine import ToldModel
from dragoman.tools.doctor.expected import expected_model


def tell_model(config: Config, available: int) -> ToldModel:
    """The facts of the configured model, or the problem with it. `available`: bytes of memory."""
    try:
        return _told(config, available)
    except (ConfigError, ModelError, OSError) as error:
        return ToldModel(f"{config.name} in {config.model_dir}", str(error))


def _told(config: Config, available: int) -> ToldModel:
    where = f"{config.name} in {config.model_dir}"
    if config.engine.engine != "rolling":
        return ToldModel(f"{where}, run by the engine {config.engine.engine}, which is not examined")
    if not has_model(config):
        return ToldModel(where, f"there is no model in {config.model_dir}")
    needs = memory_needs(config)
    problem = ""
    try:
        check_room(config.name, needs, available)
    except ModelError as error:
        problem = str(error)
    if not generates(config):
        return ToldModel(f"{where}: embeds or scores texts; needs {needs.least >> 20} MiB", problem)
    with citing(config):
        return ToldModel(expected_model(config.name, engine_setup(config), needs, available), problem)
