-- log_change(events, kind, who, tenant, field, old, new) -> nothing. one line of history
local function log_change(events, kind, who, tenant, field, old, new)
  note(events, 'kind who tenant field old new', { kind, who, tenant, field, old, new })
end
