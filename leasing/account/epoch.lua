-- epoch reads the life of this server's data. It begins a new one if there is none, or if it is another server's:
-- this server may be a replica that lagged behind, an older copy, or a master that was a replica in between. A life is
-- a string under several names, in a Cluster in slots that may move: "id began ends run replid", times in us. The run
-- of a server that does not report it is "-". A name whose slot is at another server says nothing. ARGV: an id for a
-- new life, the length of its youth in us, the current time in us (0 except in tests), flags, the life that the node
-- knows of this server ("": none), and the number of names under which the node has read it here. The names are KEYS,
-- in a Cluster the rest of ARGV: those come first. Flags: 1 the node has totals to state, 2 the server is new to a
-- Cluster that the node knows, 4 slots came to it without their data. Answers the string.
local id, youth, now, flags = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local known, kept = ARGV[5], tonumber(ARGV[6])
local names = KEYS[1] and KEYS or { unpack(ARGV, 7) }
local clock = redis.call('TIME')
if now == 0 then now = clock[1] * 1000000 + clock[2] end

local function info(section)
  local text = redis.pcall('INFO', section) -- an ACL may forbid it
  return type(text) == 'string' and text or ''
end
local replication = info('replication')
if string.match(replication, 'role:slave') then return redis.error_reply('READONLY the server is a replica') end
local here = string.match(info('server'), 'run_id:(%x+)') or '-'
local replid = string.match(replication, 'master_replid:(%x+)') or '-'
-- The id of a replication also changes when its first replica connects or the last one is long gone. Only a server
-- that was a replica itself has had another one before.
local former = string.match(replication, 'master_replid2:%x*[^0%s]')

-- ours reads a life, if it is this server's.
local function ours(value)
  local of, began, ends, run, with = string.match(value or '', '^(%x+) (%d+) (%d+) (%S+) (%S+)$')
  if of and (run == here or run == '-' or here == '-') then
    return { id = of, began = tonumber(began), ends = tonumber(ends), with = with }
  end
end

local values, lost, is = {}, false, nil
for i, name in ipairs(names) do
  local value = redis.pcall('GET', name)
  if type(value) ~= 'table' then
    local found = ours(value)
    values[name] = value or ''
    lost = lost or i <= kept and not found
    if found and not (is and is.began >= found.began) then is = found end
  end
end
-- All names have moved away from a server that the node knows: that is no loss.
local carried = not is and not lost and ours(known)
is = is or carried or nil

-- A new life is young for nobody, until a node that knew another says so.
if not is or former and is.with ~= '-' and is.with ~= replid then is = { id = id, began = now, ends = 0 } end
local was = string.match(known, '^%x+')
local another = was and was ~= is.id or not was and former and flags % 4 >= 2
if flags >= 4 then is.began = now end
local most = 5 * youth -- ratelimit.YoungMost
local young = is.began - most <= now and now < is.ends and now < is.began + most
if another and now < is.began + youth or flags >= 4 or young and flags % 2 == 1 then
  is.ends = math.max(is.ends, now + youth) -- clocks differ
end

local text = table.concat({ is.id, string.format('%.0f', is.began), string.format('%.0f', is.ends), here, replid }, ' ')
local holds, failed = carried, redis.error_reply('MOVED the names of the epoch')
for name, value in pairs(values) do
  local done = value == text or redis.pcall('SET', name, text)
  if type(done) == 'table' and done.err then failed = done else holds = true end
end
return holds and text or failed
