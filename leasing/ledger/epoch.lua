-- epoch reads in which life the data of this server is, and begins a new one
-- when there is none, or when another server has the data: it may be a replica
-- that lagged behind, or a restart from an older copy.
--
-- KEYS[1] is a string: "id began learning run", times in us.
-- ARGV: an id for a new life, how long a life's holders have to tell what was
--       lost in us, the time in us (0 but in tests: Redis' own), flags: 1 look
--       who has the data, 2 this node still has something to tell
-- Answers the string, and the time in us.

local id, learn, flags = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[4])
local now = tonumber(ARGV[3])
if now == 0 then
  local time = redis.call('TIME')
  now = time[1] * 1000000 + time[2]
end

local function number(n) return string.format('%.0f', n) end
local function put(id, began, learning, run)
  local value = table.concat({ id, number(began), number(learning), run }, ' ')
  redis.call('SET', KEYS[1], value)
  return { value, number(now) }
end

local value = redis.call('GET', KEYS[1])
local known, began, learning, run
if value then known, began, learning, run = string.match(value, '^(%x+) (%d+) (%d+) (%S+)$') end
-- A life learns for so long from any instant on, and not longer: where it seems to, the clock was set back.
local most = now + learn
local here = run
if flags % 2 == 1 or not known then
  local info = redis.pcall('INFO', 'server') -- which an ACL may forbid
  here = type(info) == 'string' and string.match(info, 'run_id:(%x+)') or '-'
end
if not known or run ~= here and run ~= '-' and here ~= '-' then return put(id, now, most, here) end
learning = math.min(tonumber(learning), most)
if flags >= 2 and now < learning then learning = most end
return put(known, tonumber(began), learning, here)
