-- sit takes, renews or gives up a seat: seats.go, in Lua, atomically in Redis.
-- KEYS[1] is a hash: field "f" the last fence, field N seat N.
--
-- ARGV: holder, seats, ttl us, own seat, own fence, own taint, leave, clean,
--       the time in us (0 but in tests: Redis' own), plan, own since
-- Answers {seat, fence, taint, agreed, since}; seat -1 when all are taken.

local holder = ARGV[1]
local n = {}
for i = 2, 9 do n[i] = tonumber(ARGV[i]) end
local plan = ARGV[10]
local seats, ttl, own, fence, taint, leave, clean = n[2], n[3], n[4], n[5], n[6], n[7] == 1, n[8] == 1
local now = n[9]
if now == 0 then
  local time = redis.call('TIME')
  now = time[1] * 1000000 + time[2]
end

-- A seat is {holder, fence, expires, taint, plan, since}; holder "" is nobody, and
-- plan "" that of a release which does not tell.
local FENCE, EXPIRES, TAINT, PLAN, SINCE = 2, 3, 4, 5, 6
local all, last, moved = {}, 0, {}
local fields = redis.call('HGETALL', KEYS[1])
for i = 1, #fields, 2 do
  if fields[i] == 'f' then
    last = tonumber(fields[i + 1])
  else
    local s = cmsgpack.unpack(fields[i + 1])
    s[PLAN], s[SINCE] = s[PLAN] or '', s[SINCE] or 0
    if s[EXPIRES] > now + ttl or s[TAINT] > now or s[SINCE] > now then
      -- The clock went back: nothing that has happened is to come.
      s[EXPIRES], s[TAINT], s[SINCE] = math.min(s[EXPIRES], now + ttl), math.min(s[TAINT], now), math.min(s[SINCE], now)
      moved[#moved + 1] = tonumber(fields[i])
    end
    all[tonumber(fields[i])] = s
  end
end

-- ended is until when a seat's last tenant may have spent, if it has none now.
local function ended(s) return s[1] == '' and s[TAINT] or s[EXPIRES] end

local function put(i, s)
  all[i] = s
  last = math.max(last, s[2])
  redis.call('HSET', KEYS[1], i, cmsgpack.pack(s), 'f', string.format('%.0f', last))
end

for _, i in ipairs(moved) do put(i, all[i]) end

-- tenancy is what the tenant of a seat is told.
local function tenancy(i)
  local agreed, since = 1, 0
  for _, s in pairs(all) do
    if s[PLAN] == plan then
      since = math.max(since, s[SINCE])
    elseif s[1] ~= '' and now < s[EXPIRES] then
      agreed = 0
    else
      since = math.max(since, ended(s))
    end
  end
  return { i, all[i][FENCE], all[i][TAINT], agreed, since }
end

if fence ~= 0 and own >= 0 then
  local s = all[own]
  local mine = s and s[1] == holder and s[FENCE] == fence
  if not leave and own < seats and (mine or not s) then -- renewed, or the ledger has forgotten
    s = s or { holder, fence, 0, math.min(taint, now), plan, math.min(tonumber(ARGV[11]), now) }
    if s[PLAN] ~= plan then s[PLAN], s[SINCE] = plan, now end
    s[EXPIRES] = now + ttl
    put(own, s)
    return tenancy(own)
  elseif mine and leave then
    put(own, { '', fence, 0, clean and s[TAINT] or now, s[PLAN], s[SINCE] })
  end
end
if leave then return { -1, 0, 0, 0, 0 } end
-- A seat beyond those there are now is left to expire: whoever holds it may
-- not hear of this.
local best, least = -1, 0
for i = 0, seats - 1 do
  local s = all[i] or { '', 0, 0, 0 }
  local t = s[1] == '' and s[TAINT] or (now >= s[EXPIRES] and s[EXPIRES]) or nil
  if t and (best < 0 or t < least) then best, least = i, t end
end
if best < 0 then return { -1, 0, 0, 0, 0 } end
local before, since = all[best], 0
if before then since = before[PLAN] == plan and before[SINCE] or ended(before) end
last = math.max(last + 1, now)
put(best, { holder, last, now + ttl, least, plan, since })
return tenancy(best)
