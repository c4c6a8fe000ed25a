-- The common part of both scripts: claim.lua or bucket.lua follows it in one text. Numbers are whole and within 2^53,
-- so that doubles are exact. All fields are checked before anything is written: another form is an error, and changes
-- nothing. Redis keeps the writes of a script that fails in its middle.
--
-- KEYS are the accounts. ARGV[1] is the holder's name, and ARGV[2] the numbers of numbersOf (wire.go) as doubles. All
-- times are microseconds.
local Seq, Taken, Spent, Need, Want, Unit, Lease, Slot, Limit, Begins, Ends, Over, Requests,
  Seconds, Slides, Now = struct.unpack('<dddddddddddddddd', ARGV[2])
local max, min, floor = math.max, math.min, math.floor
local OVERTAKEN, OVER, SHARE, MOST = 1, 2, 8, 4503599627370496 -- MOST: mostSum

-- integer reads a field that draws add to. A field that is missing is 0: the account, or the holder, is new.
local function integer(text)
  if not text then return 0 end
  local n = string.match(text, '^%-?%d+$') and tonumber(text)
  if not n or n > 2 * MOST or n < -2 * MOST then error('no integer in ' .. KEYS[1]) end
  return n
end
-- unpacked reads doubles of a format, and the rest of the text; zeros if there is none.
local function unpacked(packed, format)
  if not packed then return 0, 0, 0, 0, 0, 0, 0 end
  if #packed ~= 8 * #format - 8 then error('no record in ' .. KEYS[1]) end
  local all = { struct.unpack(format, packed) }
  for i = 1, #all - 1 do
    if all[i] % 1 ~= 0 or all[i] > 2 * MOST or all[i] < -2 * MOST then error('no whole number in ' .. KEYS[1]) end
  end
  return unpack(all)
end
-- text writes a number for a command. Lua's own form of a large number has an exponent, which HINCRBY refuses.
local function text(n) return string.format('%.0f', n) end
-- expires sets the end of the account. A new one needs it before its first write, too: then it has no effect but to fail
-- for a user without the right to it. Redis keeps what a script wrote before it failed, and that would stay for ever.
local function expires(at) redis.call('PEXPIREAT', KEYS[1], text(floor((at + 999) / 1000))) end
-- reply: code, seq, granted, total, sum, in hand, fence, time, recalling
local function reply(code, ...) return struct.pack('<ddddddddd', code, Seq, ...) end
-- nothing is a reply without a settlement.
local function nothing(code) return reply(code, 0, 0, 0, 0, 0, 0, 0) end
-- granted is the size of a grant, as in account.go.
local function granted(free, want) return max(0, min(free, want, max(Need, floor(free / SHARE)))) end

-- The script reads the clock itself, so a message that was under way for long is judged by the time of its arrival.
local clock = redis.call('TIME')
local now = Now > 0 and Now or clock[1] * 1000000 + clock[2] -- Now is 0 except in tests
