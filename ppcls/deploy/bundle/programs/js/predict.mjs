// Predicts the classes of images with the bundle in which this program lies, and verifies the bundle:
//
//     node predict.mjs photo.jpg ...
//     node predict.mjs verify

import { readFile } from "node:fs/promises";
import { dirname, resolve } from "node:path";
import { fileURLToPath } from "node:url";

import ort from "onnxruntime-node";
import sharp from "sharp";

import { Bundle, describe } from "./bundle.mjs";

const FOLDER = resolve(dirname(fileURLToPath(import.meta.url)), "../..");

// Returns the upright RGB pixels of a JPEG or PNG file. Colour profiles and alpha are ignored.
export async function decode(data) {
  const image = sharp(data, { ignoreIcc: true, limitInputPixels: 100_000_000, failOn: "warning" });
  const { format, space, depth } = await image.metadata();
  if (!["jpeg", "png"].includes(format)) throw new Error(`expected a JPEG or PNG file, got ${format}`);
  if (space === "cmyk") throw new Error("CMYK is not supported; convert the image to RGB");
  const deep = depth === "ushort";
  const upright = image.rotate().removeAlpha().toColourspace(deep ? "rgb16" : "srgb");
  const { data: raw, info } = await upright.raw({ depth: deep ? "ushort" : "uchar" }).toBuffer({
    resolveWithObject: true,
  });
  const { height, width, channels } = info;
  const samples = deep ? new Uint16Array(raw.buffer, raw.byteOffset, raw.length / 2) : raw;
  const values = new Uint8Array(3 * height * width);
  for (let i = 0; i < values.length; i += 1) {
    const sample = samples[channels === 3 ? i : channels * Math.floor(i / 3)];
    values[i] = deep ? Math.floor((sample + 128) / 257) : sample;
  }
  return { height, width, values };
}

async function main(words) {
  if (!words.length) {
    console.error("usage: node predict.mjs verify | node predict.mjs IMAGE ...");
    return 2;
  }
  const bundle = await Bundle.open({
    read: (name) => readFile(resolve(FOLDER, name)),
    decode,
    createSession: (data) => ort.InferenceSession.create(data, { logSeverityLevel: 3 }),
    Tensor: ort.Tensor,
  });
  if (words.length === 1 && words[0] === "verify") {
    const { passed, text } = await bundle.verify();
    console.log(text);
    return passed ? 0 : 3;
  }
  let code = 0;
  for (const path of words) {
    try {
      const classes = await bundle.predict(await readFile(path));
      console.log(`${path}: ${describe(classes)}`);
    } catch (error) {
      console.log(`${path}: error: ${error.message}`);
      code = 1;
    }
  }
  return code;
}

process.exitCode = await main(process.argv.slice(2));
