-- epoch reads the life of this server's data. It begins a new one if there is none, or if it is another server's:
-- this server may be a replica that lagged behind, an older copy, or a master that was a replica in between.
--
-- A life is the string "id began ends run replid", with times in us. It is stored under several names, in a Cluster in
-- slots that may move. The run of a server that does not report it is "-". A name whose slot is at another server
-- says nothing. The script answers the life as it stores it, and then the names that have it now.
--
-- ARGV: 1 an id for a new life; 2 the length of its youth in us; 3 the current time in us (0 except in tests); 4 flags;
-- 5 the life that the node has read of this server ("": none); 6 the number of names under which the node knows a life:
-- that of 5, or without it those of the servers that the slots came from. The names are KEYS, in a Cluster the rest of
-- ARGV: those of 6 come first.
--
-- Flags: 1 the node has totals to state; 2 the server is new to a Cluster that the node reads for longer; 4 slots came
-- to it without their data.
--
-- The script reads who the server is, then the life under each name, decides whether that still counts, makes it young
-- if the node has read another, and writes it under all names.
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
-- A replica's data is its master's, and so is the life. It refuses the node's messages, too.
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

-- Of several lives of this server, the latest counts: a slot that was away meanwhile brings back an older one.
-- lost: the slot of a name of 6 is here, and the life is gone. Slots that moved bring the life of another server.
local values, lost, is = {}, false, nil
for i, name in ipairs(names) do
  local value = redis.pcall('GET', name)
  if type(value) ~= 'table' then -- otherwise an error: its slot is at another server
    local found = ours(value)
    values[name] = value or ''
    lost = lost or i <= kept and not found and (known ~= '' or not value)
    if found and not (is and is.began >= found.began) then is = found end
  end
end
-- All names have moved away from a server that the node has read before: that is no loss.
local carried = not is and not lost and ours(known)
is = is or carried or nil

-- A new life is old, until a node that has read another one says so: a first start is no loss.
if not is or former and is.with ~= '-' and is.with ~= replid then is = { id = id, began = now, ends = 0 } end
-- another: the node has read another life of this server. A server that is new to a Cluster may have replaced a master
-- whose life the node has read: it was a replica, or the life of its slots is gone.
local was = string.match(known, '^%x+')
local another = was and was ~= is.id or not was and flags % 4 >= 2 and (former or lost)
-- Slots without their data are a loss under the same id: the life is as young as a new one.
if flags >= 4 then is.began = now end
local most = 5 * youth -- ratelimit.YoungMost
-- Epoch.Prolongs, in Lua: a node may prolong the youth of a young life, up to most.
local young = is.began - most <= now and now < is.ends and now < is.began + most
if another and now < is.began + youth or flags >= 4 or young and flags % 2 == 1 then
  is.ends = math.max(is.ends, now + youth) -- clocks differ
end

local text = table.concat({ is.id, string.format('%.0f', is.began), string.format('%.0f', is.ends), here, replid }, ' ')
-- The name of a slot that moves away between the two loops is refused. One that holds is enough.
local answer, failed = { text }, redis.error_reply('MOVED the names of the epoch')
for name, value in pairs(values) do
  local done = value == text or redis.pcall('SET', name, text)
  if type(done) == 'table' and done.err then failed = done else table.insert(answer, name) end
end
return (carried or answer[2]) and answer or failed
