"""The OpenAPI document, made from the routing table and the field models."""

from nodes.api.openapi.document import render

__all__ = ["render"]
