-- sit takes, renews or gives up a seat: seats.go, in Lua, atomically in Redis.
-- KEYS[1] is a hash: field "f" the last fence, field N seat N.
--
-- ARGV: holder, seats, ttl us, own seat, own fence, own taint, leave, clean,
--       the time in us (0 but in tests: Redis' own)
-- Answers {seat, fence, taint}; seat -1 when all are taken.

local holder = ARGV[1]
local n = {}
for i = 2, 9 do n[i] = tonumber(ARGV[i]) end
local seats, ttl, own, fence, taint, leave, clean = n[2], n[3], n[4], n[5], n[6], n[7] == 1, n[8] == 1
local now = n[9]
if now == 0 then
  local time = redis.call('TIME')
  now = time[1] * 1000000 + time[2]
end

-- A seat is {holder, fence, expires, taint}; holder "" is nobody.
local all, last = {}, 0
local fields = redis.call('HGETALL', KEYS[1])
for i = 1, #fields, 2 do
  if fields[i] == 'f' then
    last = tonumber(fields[i + 1])
  else
    all[tonumber(fields[i])] = cmsgpack.unpack(fields[i + 1])
  end
end

local function put(i, s)
  last = math.max(last, s[2])
  redis.call('HSET', KEYS[1], i, cmsgpack.pack(s), 'f', string.format('%.0f', last))
end

if fence ~= 0 and own >= 0 then
  local s = all[own]
  local mine = s and s[1] == holder and s[2] == fence
  if not leave and own < seats and (mine or not s) then -- renewed, or the ledger has forgotten
    put(own, { holder, fence, now + ttl, s and s[4] or taint })
    return { own, fence, s and s[4] or taint }
  elseif mine and leave then
    all[own] = { '', fence, 0, clean and s[4] or now }
    put(own, all[own])
  end
end
if leave then return { -1, 0, 0 } end
-- A seat beyond those there are now is left to expire: whoever holds it may
-- not hear of this.
local best, least = -1, 0
for i = 0, seats - 1 do
  local s = all[i] or { '', 0, 0, 0 }
  local t = s[1] == '' and s[4] or (now >= s[3] and s[3]) or nil
  if t and (best < 0 or t < least) then best, least = i, t end
end
if best < 0 then return { -1, 0, 0 } end
last = math.max(last + 1, now)
put(best, { holder, last, now + ttl, least })
return { best, last, least }
