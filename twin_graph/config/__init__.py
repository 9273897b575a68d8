"""Settings: what they are, how they are read and changed, and what they must not be together."""

from twin_graph.config.loading import FREE as FREE
from twin_graph.config.loading import change as change
from twin_graph.config.loading import changed_from_preset as changed_from_preset
from twin_graph.config.loading import describe as describe
from twin_graph.config.loading import differences as differences
from twin_graph.config.loading import is_setting as is_setting
from twin_graph.config.loading import load
from twin_graph.config.loading import parse_assignment as parse_assignment
from twin_graph.config.loading import preset_description as preset_description
from twin_graph.config.loading import preset_names as preset_names
from twin_graph.config.loading import replace as replace
from twin_graph.config.loading import setting_names as setting_names
from twin_graph.config.loading import validate as validate
from twin_graph.config.settings import Settings as Settings

__all__ = ["load"]
