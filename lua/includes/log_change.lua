-- log_change(events, kind, who, tenant, field, old, new) -> nothing. one line of history, capped like all
local function log_change(events, kind, who, tenant, field, old, new)
  redis.call(
    'XADD',
    events,
    'MAXLEN',
    '~',
    10000,
    '*',
    'kind',
    kind,
    'who',
    who,
    'tenant',
    tenant,
    'field',
    field,
    'old',
    old,
    'new',
    new
  )
end
