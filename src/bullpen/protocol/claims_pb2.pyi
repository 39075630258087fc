import datetime

from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Claim(_message.Message):
    __slots__ = ("name", "client", "spec", "status")
    NAME_FIELD_NUMBER: _ClassVar[int]
    CLIENT_FIELD_NUMBER: _ClassVar[int]
    SPEC_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    name: str
    client: str
    spec: ClaimSpec
    status: ClaimStatus
    def __init__(self, name: _Optional[str] = ..., client: _Optional[str] = ..., spec: _Optional[_Union[ClaimSpec, _Mapping]] = ..., status: _Optional[_Union[ClaimStatus, _Mapping]] = ...) -> None: ...

class ClaimSpec(_message.Message):
    __slots__ = ("requests", "constraints", "duration", "begin_time", "priority", "preemptible", "member_loss")
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    CONSTRAINTS_FIELD_NUMBER: _ClassVar[int]
    DURATION_FIELD_NUMBER: _ClassVar[int]
    BEGIN_TIME_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    PREEMPTIBLE_FIELD_NUMBER: _ClassVar[int]
    MEMBER_LOSS_FIELD_NUMBER: _ClassVar[int]
    requests: _containers.RepeatedCompositeFieldContainer[Request]
    constraints: _containers.RepeatedCompositeFieldContainer[Constraint]
    duration: _duration_pb2.Duration
    begin_time: _timestamp_pb2.Timestamp
    priority: int
    preemptible: bool
    member_loss: str
    def __init__(self, requests: _Optional[_Iterable[_Union[Request, _Mapping]]] = ..., constraints: _Optional[_Iterable[_Union[Constraint, _Mapping]]] = ..., duration: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., begin_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., priority: _Optional[int] = ..., preemptible: _Optional[bool] = ..., member_loss: _Optional[str] = ...) -> None: ...

class Request(_message.Message):
    __slots__ = ("name", "exactly", "first_available")
    NAME_FIELD_NUMBER: _ClassVar[int]
    EXACTLY_FIELD_NUMBER: _ClassVar[int]
    FIRST_AVAILABLE_FIELD_NUMBER: _ClassVar[int]
    name: str
    exactly: Exactly
    first_available: _containers.RepeatedCompositeFieldContainer[Alternative]
    def __init__(self, name: _Optional[str] = ..., exactly: _Optional[_Union[Exactly, _Mapping]] = ..., first_available: _Optional[_Iterable[_Union[Alternative, _Mapping]]] = ...) -> None: ...

class Exactly(_message.Message):
    __slots__ = ("device_class_name", "selectors", "allocation_mode", "count", "capacity", "totals", "max_count", "tolerations")
    class CapacityEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    class TotalsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    DEVICE_CLASS_NAME_FIELD_NUMBER: _ClassVar[int]
    SELECTORS_FIELD_NUMBER: _ClassVar[int]
    ALLOCATION_MODE_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    CAPACITY_FIELD_NUMBER: _ClassVar[int]
    TOTALS_FIELD_NUMBER: _ClassVar[int]
    MAX_COUNT_FIELD_NUMBER: _ClassVar[int]
    TOLERATIONS_FIELD_NUMBER: _ClassVar[int]
    device_class_name: str
    selectors: _containers.RepeatedCompositeFieldContainer[Selector]
    allocation_mode: str
    count: int
    capacity: _containers.ScalarMap[str, str]
    totals: _containers.ScalarMap[str, str]
    max_count: int
    tolerations: _containers.RepeatedCompositeFieldContainer[Toleration]
    def __init__(self, device_class_name: _Optional[str] = ..., selectors: _Optional[_Iterable[_Union[Selector, _Mapping]]] = ..., allocation_mode: _Optional[str] = ..., count: _Optional[int] = ..., capacity: _Optional[_Mapping[str, str]] = ..., totals: _Optional[_Mapping[str, str]] = ..., max_count: _Optional[int] = ..., tolerations: _Optional[_Iterable[_Union[Toleration, _Mapping]]] = ...) -> None: ...

class Alternative(_message.Message):
    __slots__ = ("name", "after", "device_class_name", "selectors", "allocation_mode", "count", "capacity", "totals", "max_count", "tolerations")
    class CapacityEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    class TotalsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    DEVICE_CLASS_NAME_FIELD_NUMBER: _ClassVar[int]
    SELECTORS_FIELD_NUMBER: _ClassVar[int]
    ALLOCATION_MODE_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    CAPACITY_FIELD_NUMBER: _ClassVar[int]
    TOTALS_FIELD_NUMBER: _ClassVar[int]
    MAX_COUNT_FIELD_NUMBER: _ClassVar[int]
    TOLERATIONS_FIELD_NUMBER: _ClassVar[int]
    name: str
    after: _duration_pb2.Duration
    device_class_name: str
    selectors: _containers.RepeatedCompositeFieldContainer[Selector]
    allocation_mode: str
    count: int
    capacity: _containers.ScalarMap[str, str]
    totals: _containers.ScalarMap[str, str]
    max_count: int
    tolerations: _containers.RepeatedCompositeFieldContainer[Toleration]
    def __init__(self, name: _Optional[str] = ..., after: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., device_class_name: _Optional[str] = ..., selectors: _Optional[_Iterable[_Union[Selector, _Mapping]]] = ..., allocation_mode: _Optional[str] = ..., count: _Optional[int] = ..., capacity: _Optional[_Mapping[str, str]] = ..., totals: _Optional[_Mapping[str, str]] = ..., max_count: _Optional[int] = ..., tolerations: _Optional[_Iterable[_Union[Toleration, _Mapping]]] = ...) -> None: ...

class Selector(_message.Message):
    __slots__ = ("cel", "labels")
    CEL_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    cel: Cel
    labels: LabelSelector
    def __init__(self, cel: _Optional[_Union[Cel, _Mapping]] = ..., labels: _Optional[_Union[LabelSelector, _Mapping]] = ...) -> None: ...

class Cel(_message.Message):
    __slots__ = ("expression",)
    EXPRESSION_FIELD_NUMBER: _ClassVar[int]
    expression: str
    def __init__(self, expression: _Optional[str] = ...) -> None: ...

class LabelSelector(_message.Message):
    __slots__ = ("match_labels", "match_expressions")
    class MatchLabelsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    MATCH_LABELS_FIELD_NUMBER: _ClassVar[int]
    MATCH_EXPRESSIONS_FIELD_NUMBER: _ClassVar[int]
    match_labels: _containers.ScalarMap[str, str]
    match_expressions: _containers.RepeatedCompositeFieldContainer[LabelRequirement]
    def __init__(self, match_labels: _Optional[_Mapping[str, str]] = ..., match_expressions: _Optional[_Iterable[_Union[LabelRequirement, _Mapping]]] = ...) -> None: ...

class LabelRequirement(_message.Message):
    __slots__ = ("key", "operator", "values")
    KEY_FIELD_NUMBER: _ClassVar[int]
    OPERATOR_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    key: str
    operator: str
    values: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, key: _Optional[str] = ..., operator: _Optional[str] = ..., values: _Optional[_Iterable[str]] = ...) -> None: ...

class Toleration(_message.Message):
    __slots__ = ("key", "operator", "value", "effect")
    KEY_FIELD_NUMBER: _ClassVar[int]
    OPERATOR_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    EFFECT_FIELD_NUMBER: _ClassVar[int]
    key: str
    operator: str
    value: str
    effect: str
    def __init__(self, key: _Optional[str] = ..., operator: _Optional[str] = ..., value: _Optional[str] = ..., effect: _Optional[str] = ...) -> None: ...

class Constraint(_message.Message):
    __slots__ = ("match_attribute", "distinct_attribute", "requests", "prefer")
    MATCH_ATTRIBUTE_FIELD_NUMBER: _ClassVar[int]
    DISTINCT_ATTRIBUTE_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    PREFER_FIELD_NUMBER: _ClassVar[int]
    match_attribute: str
    distinct_attribute: str
    requests: _containers.RepeatedScalarFieldContainer[str]
    prefer: bool
    def __init__(self, match_attribute: _Optional[str] = ..., distinct_attribute: _Optional[str] = ..., requests: _Optional[_Iterable[str]] = ..., prefer: _Optional[bool] = ...) -> None: ...

class ClaimStatus(_message.Message):
    __slots__ = ("members", "ended", "end_time", "conditions", "allocation")
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    ENDED_FIELD_NUMBER: _ClassVar[int]
    END_TIME_FIELD_NUMBER: _ClassVar[int]
    CONDITIONS_FIELD_NUMBER: _ClassVar[int]
    ALLOCATION_FIELD_NUMBER: _ClassVar[int]
    members: _containers.RepeatedCompositeFieldContainer[Member]
    ended: bool
    end_time: _timestamp_pb2.Timestamp
    conditions: _containers.RepeatedCompositeFieldContainer[Condition]
    allocation: Allocation
    def __init__(self, members: _Optional[_Iterable[_Union[Member, _Mapping]]] = ..., ended: _Optional[bool] = ..., end_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., conditions: _Optional[_Iterable[_Union[Condition, _Mapping]]] = ..., allocation: _Optional[_Union[Allocation, _Mapping]] = ...) -> None: ...

class Allocation(_message.Message):
    __slots__ = ("classes", "inventory")
    CLASSES_FIELD_NUMBER: _ClassVar[int]
    INVENTORY_FIELD_NUMBER: _ClassVar[int]
    classes: _containers.RepeatedCompositeFieldContainer[AllocatedClass]
    inventory: _containers.RepeatedCompositeFieldContainer[AllocationSource]
    def __init__(self, classes: _Optional[_Iterable[_Union[AllocatedClass, _Mapping]]] = ..., inventory: _Optional[_Iterable[_Union[AllocationSource, _Mapping]]] = ...) -> None: ...

class AllocatedClass(_message.Message):
    __slots__ = ("name", "generation", "requests", "config")
    NAME_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    CONFIG_FIELD_NUMBER: _ClassVar[int]
    name: str
    generation: int
    requests: _containers.RepeatedScalarFieldContainer[str]
    config: str
    def __init__(self, name: _Optional[str] = ..., generation: _Optional[int] = ..., requests: _Optional[_Iterable[str]] = ..., config: _Optional[str] = ...) -> None: ...

class AllocationSource(_message.Message):
    __slots__ = ("kind", "name", "generation")
    KIND_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    kind: str
    name: str
    generation: int
    def __init__(self, kind: _Optional[str] = ..., name: _Optional[str] = ..., generation: _Optional[int] = ...) -> None: ...

class Member(_message.Message):
    __slots__ = ("request", "alternative", "device", "lease")
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    ALTERNATIVE_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    LEASE_FIELD_NUMBER: _ClassVar[int]
    request: str
    alternative: str
    device: str
    lease: str
    def __init__(self, request: _Optional[str] = ..., alternative: _Optional[str] = ..., device: _Optional[str] = ..., lease: _Optional[str] = ...) -> None: ...

class Condition(_message.Message):
    __slots__ = ("type", "status", "reason", "message")
    TYPE_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    type: str
    status: str
    reason: str
    message: str
    def __init__(self, type: _Optional[str] = ..., status: _Optional[str] = ..., reason: _Optional[str] = ..., message: _Optional[str] = ...) -> None: ...

class CreateClaimRequest(_message.Message):
    __slots__ = ("parent", "claim_id", "spec")
    PARENT_FIELD_NUMBER: _ClassVar[int]
    CLAIM_ID_FIELD_NUMBER: _ClassVar[int]
    SPEC_FIELD_NUMBER: _ClassVar[int]
    parent: str
    claim_id: str
    spec: ClaimSpec
    def __init__(self, parent: _Optional[str] = ..., claim_id: _Optional[str] = ..., spec: _Optional[_Union[ClaimSpec, _Mapping]] = ...) -> None: ...

class GetClaimRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class WatchClaimRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class ListClaimsRequest(_message.Message):
    __slots__ = ("parent", "page_size", "page_token", "show_ended")
    PARENT_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    SHOW_ENDED_FIELD_NUMBER: _ClassVar[int]
    parent: str
    page_size: int
    page_token: str
    show_ended: bool
    def __init__(self, parent: _Optional[str] = ..., page_size: _Optional[int] = ..., page_token: _Optional[str] = ..., show_ended: _Optional[bool] = ...) -> None: ...

class ListClaimsResponse(_message.Message):
    __slots__ = ("claims", "next_page_token")
    CLAIMS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    claims: _containers.RepeatedCompositeFieldContainer[Claim]
    next_page_token: str
    def __init__(self, claims: _Optional[_Iterable[_Union[Claim, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class UpdateClaimRequest(_message.Message):
    __slots__ = ("name", "duration", "begin_time", "priority", "client")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DURATION_FIELD_NUMBER: _ClassVar[int]
    BEGIN_TIME_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    CLIENT_FIELD_NUMBER: _ClassVar[int]
    name: str
    duration: _duration_pb2.Duration
    begin_time: _timestamp_pb2.Timestamp
    priority: int
    client: str
    def __init__(self, name: _Optional[str] = ..., duration: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., begin_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., priority: _Optional[int] = ..., client: _Optional[str] = ...) -> None: ...

class ReleaseClaimRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class ScheduleRequest(_message.Message):
    __slots__ = ("parent", "spec", "waited")
    PARENT_FIELD_NUMBER: _ClassVar[int]
    SPEC_FIELD_NUMBER: _ClassVar[int]
    WAITED_FIELD_NUMBER: _ClassVar[int]
    parent: str
    spec: ClaimSpec
    waited: _duration_pb2.Duration
    def __init__(self, parent: _Optional[str] = ..., spec: _Optional[_Union[ClaimSpec, _Mapping]] = ..., waited: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class ScheduleResponse(_message.Message):
    __slots__ = ("verdict", "possible", "starts", "members", "reasons", "relaxation", "blockers")
    VERDICT_FIELD_NUMBER: _ClassVar[int]
    POSSIBLE_FIELD_NUMBER: _ClassVar[int]
    STARTS_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    REASONS_FIELD_NUMBER: _ClassVar[int]
    RELAXATION_FIELD_NUMBER: _ClassVar[int]
    BLOCKERS_FIELD_NUMBER: _ClassVar[int]
    verdict: str
    possible: bool
    starts: _timestamp_pb2.Timestamp
    members: _containers.RepeatedCompositeFieldContainer[Member]
    reasons: _containers.RepeatedScalarFieldContainer[str]
    relaxation: str
    blockers: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, verdict: _Optional[str] = ..., possible: _Optional[bool] = ..., starts: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., members: _Optional[_Iterable[_Union[Member, _Mapping]]] = ..., reasons: _Optional[_Iterable[str]] = ..., relaxation: _Optional[str] = ..., blockers: _Optional[_Iterable[str]] = ...) -> None: ...
