"""A collector of OpenTelemetry spans, which keeps what it was sent."""

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


class Collector:
    """Takes OTLP over HTTP."""

    def __init__(self) -> None:
        self.requests: list[ExportTraceServiceRequest] = []
        self.paths: list[str] = []
        self.status = 200
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                assert self.headers["content-type"] == "application/x-protobuf"
                collector.paths.append(self.path)
                collector.requests.append(ExportTraceServiceRequest.FromString(body))
                self.send_response(collector.status)
                self.end_headers()

            def log_message(self, *args: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()

    def traces(self) -> int:
        """How many traces the spans belong to."""
        return len(
            {
                span.trace_id
                for request in self.requests
                for resource in request.resource_spans
                for scope in resource.scope_spans
                for span in scope.spans
            }
        )

    def spans(self) -> dict[str, list[dict[str, object]]]:
        """For each name the spans of it: service, the name of what it is in, start and end, attributes."""
        flat = [
            (resource.resource.attributes[0].value.string_value, span)
            for request in self.requests
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]
        names = {span.span_id: span.name for _, span in flat}
        assert len(names) == len(flat)  # no id twice
        found: dict[str, list[dict[str, object]]] = {}
        for service, span in flat:
            attributes = {a.key: getattr(a.value, a.value.WhichOneof("value")) for a in span.attributes}
            times = (span.start_time_unix_nano / 1e9, span.end_time_unix_nano / 1e9)
            parent = names[span.parent_span_id] if span.parent_span_id else None
            entry = {"service": service, "in": parent, "times": times, "attributes": attributes}
            found.setdefault(span.name, []).append(entry)
        return found
