from tests.fleet.hands import led
from tests.hubs import new_hub

__all__ = ["led"]
in_house = new_hub
