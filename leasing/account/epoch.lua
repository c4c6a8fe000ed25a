-- epoch reads the life of this server's data. It begins a new one if there is none, or if it is another server's:
-- this server may be a replica that lagged behind, an older copy, or a master that was a replica in between. KEYS[1]
-- is a string: "id began until run replid", times in us. The run of a server that does not report it is "-". ARGV: an
-- id for a new life, the time of its learning in us, the current time in us (0 except in tests), and flags: 1 a node
-- has totals to restate, 2 no other node is alive, so that a new life does not learn. Answers the string, and the
-- time.
local id, learn, now, flags = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local clock = redis.call('TIME')
if now == 0 then now = clock[1] * 1000000 + clock[2] end
local function said(section, name)
  local info = redis.pcall('INFO', section) -- an ACL may forbid it
  return type(info) == 'string' and string.match(info, name .. ':(%x+)') or '-'
end
local here, replid = said('server', 'run_id'), said('replication', 'master_replid')

local function text(n) return string.format('%.0f', n) end
local function put(was, life, began, ends, of, with)
  local value = table.concat({ life, text(began), text(ends), of, with }, ' ')
  if value ~= was then redis.call('SET', KEYS[1], value) end
  return { value, text(now) }
end

local value = redis.call('GET', KEYS[1])
local known, began, ends, run, with = string.match(value or '', '^(%x+) (%d+) (%d+) (%S+) (%S+)$')
if not known then return put(value, id, now, flags >= 2 and not value and now or now + learn, here, replid) end

local other = run ~= here and run ~= '-' and here ~= '-'
-- The id of a replication also changes when its first replica connects or the last one is long gone. Only a server
-- that was a replica itself has had another one before.
local promoted = with ~= replid and with ~= '-' and string.match(said('replication', 'master_replid2'), '[^0-]')
if other or promoted then return put(value, id, now, now + learn, here, replid) end

-- Learning never ends later from now: a later end is from before the clock was set back.
ends = math.min(tonumber(ends), now + learn)
if flags % 2 == 1 and now < ends then ends = now + learn end
return put(value, known, tonumber(began), ends, here, replid)
